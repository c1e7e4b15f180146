"""Reports read CSV files alone: figures, pages and tables are made where torch cannot be imported."""

import subprocess
import sys

import pytest

from tests.helpers import SWEEP, write

ALONE = """
import runpy, sys
MEASURING = ("harness.measure", "harness.contenders", "harness.latency.measure", "harness.latency.run")
sys.modules["torch"] = None  # an import of torch fails
module, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    measuring = [name for name in sys.modules if name.startswith(MEASURING)]
    sys.exit(end.code or ", ".join(measuring) or None)
"""


@pytest.mark.parametrize(("module", "arguments"), [
    ("harness.report.figures", ["--out", "{}/plots"]),
    ("harness.report.page", ["--out", "{}/plots"]),
    ("harness.report.pages", ["{}/page.md"]),
    ("harness.report.tables", []),
])  # fmt: skip
def test_a_report_needs_no_torch_and_nothing_that_measures(tmp_path, module, arguments):
    write(tmp_path / "results", SWEEP)
    tables = ("headline", "latency_sizes")
    (tmp_path / "page.md").write_text("".join(f"<!-- table:{name} -->\n<!-- table:end -->\n" for name in tables))
    options = [argument.format(tmp_path) for argument in arguments]
    command = [sys.executable, "-c", ALONE, module, "--results", str(tmp_path / "results"), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_repeatability_needs_no_torch_and_nothing_that_measures(tmp_path):
    folders = [str(write(tmp_path / host, SWEEP).parent) for host in ("one", "two")]
    command = [sys.executable, "-c", ALONE, "harness.report.repeatability", *folders]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
