"""The Python programs of README.md and of the pages in docs/."""

import re

import pytest

from conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def programs(with_torch):
    """Every program, as a parameter of a test that is named after its page; those that import torch, or the others."""
    found = []
    for page in PAGES:
        texts = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        for number, text in enumerate(texts, 1):
            if bool(re.search(r"^import .*\btorch\b", text, re.M)) == with_torch:
                found.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


def runs_and_prints(program, command, folder):
    done = command("-c", program, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it prints something"
