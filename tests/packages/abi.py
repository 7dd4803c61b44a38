"""Prints a C program that defines every function of a header, with an empty body.

Usage: abi.py HEADER
"""

import re
import sys

header = open(sys.argv[1], encoding="utf-8").read()
code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
code = re.sub(r"^#.*(?:\\\n.*)*$", "", code, flags=re.MULTILINE)
prototypes = re.findall(r"^((?:const )?\w+ \*?foam_\w+\([^;{]*?\));", code, flags=re.MULTILINE)
assert len(prototypes) > 10, "the header declares no functions"
print(f'#include "{sys.argv[1]}"\n')
for prototype in prototypes:
    print(f"{prototype} {{ __builtin_trap(); }}")
