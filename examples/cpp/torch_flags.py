"""Prints, for a shell's eval, how to compile and link a C++ program against the torch of this Python.

TORCH_CXXFLAGS are the include folders, the language and the library ABI; TORCH_LDFLAGS the libraries and where to
find them. With --cuda the CUDA headers (an installed toolkit's, or those in triton's wheel) and c10_cuda are added, and
FOAM_TORCH_CUDA is defined.
"""

import os
import shlex
import sys

import torch
from torch.utils import cpp_extension

includes = cpp_extension.include_paths()
libraries = ["torch", "torch_cpu", "c10"]
definitions = [f"_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
if "--cuda" in sys.argv[1:]:
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    places = [
        os.path.join(cpp_extension.CUDA_HOME or "/usr/local/cuda", "include"),
        os.path.join(packages, "triton", "backends", "nvidia", "include"),
    ]
    whole = [place for place in places if os.path.exists(os.path.join(place, "crt", "host_defines.h"))]
    if not whole:
        sys.exit(f"no CUDA headers; looked in {', '.join(places)}")
    includes.append(whole[0])
    libraries.append("c10_cuda")
    definitions.append("FOAM_TORCH_CUDA")
compiling = ["-std=c++20"] + [f"-D{definition}" for definition in definitions]
for folder in includes:
    # As system headers: their warnings are not ours.
    compiling += ["-isystem", folder]
# --no-as-needed: torch's libraries register themselves when they are loaded.
linking = ["-Wl,--no-as-needed"]
for folder in cpp_extension.library_paths():
    linking += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
linking += [f"-l{library}" for library in libraries]
print("TORCH_CXXFLAGS=" + shlex.quote(" ".join(map(shlex.quote, compiling))))
print("TORCH_LDFLAGS=" + shlex.quote(" ".join(map(shlex.quote, linking))))
