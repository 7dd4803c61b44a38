import os
import re
import sys

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy, load, unzip

required_conan_version = ">=2.0"


class LibfoamConan(ConanFile):
    name = "libfoam"
    description = "FOAM: Shampoo with measured staleness, as a shared library with a stable C ABI"
    license = "MIT OR Apache-2.0"
    topics = ("optimizer", "shampoo", "machine-learning", "second-order")
    settings = "os", "arch", "compiler", "build_type"
    package_type = "library"
    options = {"shared": [True, False]}
    default_options = {"shared": True}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        manifest = load(self, os.path.join(self._root, "Cargo.toml"))
        self.version = self.version or re.search(r'^version = "(.+)"', manifest, re.M).group(1)

    def export_sources(self):
        # The archive of a release; a recipe outside the repository gets it by its address instead.
        script = os.path.join(self._root, "bindings", "python", "build_wheel.py")
        self.run(f'"{sys.executable}" "{script}" --sdist --out "{self.export_sources_folder}"')

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("libfoam runs on Linux only")

    def package_id(self):
        # cargo builds it, whatever the caller's compiler and build type are; both libraries are in the package.
        del self.info.settings.compiler
        del self.info.settings.build_type
        del self.info.options.shared

    def build(self):
        archive = os.path.join(self.source_folder, f"libfoam-{self.version}.tar.gz")
        unzip(self, archive, strip_root=True)
        prefix, target = os.path.join(self.build_folder, "prefix"), os.path.join(self.build_folder, "target")
        self.run(f'sh bindings/install.sh --strip --prefix "{prefix}" --target-dir "{target}"')

    def package(self):
        copy(self, "*", os.path.join(self.build_folder, "prefix"), self.package_folder)
        copy(self, "LICENSE-*", self.build_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # The package has CMake and pkg-config files of its own.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "foam")]
        self.cpp_info.libs = ["foam"]
        self.cpp_info.system_libs = ["m", "pthread", "dl", "rt", "util"]
