import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class TestPackage(ConanFile):
    """Builds the CMake example with the package, and runs it."""

    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain", "VirtualRunEnv"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=os.path.join(self.recipe_folder, "..", "..", "..", "examples", "cmake"))
        cmake.build()

    def test(self):
        if can_run(self):
            for program in ("quadratic_c", "quadratic_cpp_static"):
                self.run(os.path.join(self.cpp.build.bindir, program), env="conanrun")
