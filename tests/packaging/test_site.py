"""The site that `make docs` builds: no warning of Sphinx, such as one of a broken link, and an entry for each name."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("sphinx", "myst_parser", "furo")
NAME = re.compile(r"^\| `(cuconv[\w.]+)` +\|", re.MULTILINE)
TERM = '<dt><code class="docutils literal notranslate"><span class="pre">{}</span></code></dt>'


def names():
    """The names in the table of docs/api.md."""
    return NAME.findall((ROOT / "docs" / "api.md").read_text())


def test_the_table_has_every_public_name():
    import cuconv.nn

    public = {f"{module.__name__}.{name}" for module in (cuconv, cuconv.nn) for name in module.__all__}
    assert public <= set(names())
    assert len(names()) == len(set(names()))


def test_the_site_builds_without_a_warning_and_has_every_name(tmp_path):
    """One test, since building takes 5 s."""
    import cuconv

    for package in NEEDED:
        pytest.importorskip(package, reason=f"{package} is not installed: run 'pip install -e .[docs]'")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    front = (tmp_path / "index.html").read_text()
    assert "<title>cuConv</title>" in front and 'href="README.html#algorithms"' in front  # README.md, its links changed
    assert "<h1>All pages" in (tmp_path / "README.html").read_text()
    page = (tmp_path / "api.html").read_text()
    assert set(names()) <= set(re.findall(r'id="(cuconv[\w.]+)"', page))
    for argument in inspect.signature(cuconv.conv2d).parameters:
        assert TERM.format(argument) in page  # the docstring's list of arguments is a list
