"""cuconv.__version__: that of the installed package, or a word for a checkout that is not installed."""

import subprocess
import sys

import pytest

NOT_INSTALLED = """
import importlib.metadata
def version(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
"""
INSTALLED = """
import importlib.metadata
importlib.metadata.version = {"cuconv": "1.2.3"}.__getitem__
"""


@pytest.mark.parametrize(("environment", "expected"), [(INSTALLED, "1.2.3"), (NOT_INSTALLED, "0+unknown")])
def test_version(environment, expected):
    code = environment + "import cuconv; print(cuconv.__version__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == f"{expected}\n"
