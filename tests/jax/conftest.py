"""What the tests share. Two virtual devices, and the package of this checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Before jax is imported.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
sys.path.insert(0, str(ROOT / "bindings" / "python"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: run only with FOAM_TEST_ALL=1 (tests/support/python.rs)")
