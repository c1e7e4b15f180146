"""Reports read CSV files alone: figures, pages and tables are made where torch cannot be imported."""

import json
import subprocess
import sys

from tests.helpers import SWEEP, write

# Runs commands in one interpreter, which imports pandas once; each is the packages it does without, and its arguments.
ALONE = """
import json, runpy, sys
MEASURING = ("harness.stopwatch", "harness.contenders.base", "harness.sweep.one_case", "harness.isolation")
for without, *command in json.loads(sys.argv[1]):
    sys.modules.update(dict.fromkeys(without))  # an import of them fails
    sys.argv = command
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code or any(name.startswith(MEASURING) for name in sys.modules):
            sys.exit(f"{command}: {end.code}, {[name for name in sys.modules if name.startswith(MEASURING)]}")
    for name in without:
        del sys.modules[name]
"""


def test_reports_need_no_torch_and_nothing_that_measures_and_tables_no_matplotlib(tmp_path):
    results = ["--results", str(write(tmp_path / "results", SWEEP).parents[2])]
    folders = [str(write(tmp_path / host, SWEEP).parent) for host in ("one", "two")]
    page, plots = tmp_path / "page.md", str(tmp_path / "plots")
    tables = ("headline", "latency_sizes")
    page.write_text("".join(f"<!-- table:{name} -->\n<!-- table:end -->\n" for name in tables))
    commands = [
        [["torch", "matplotlib", "nvtx", "tqdm"], "harness", "report", "tables", *results],
        [["torch"], "harness", "report", "repeatability", *folders],
        [["torch"], "harness", "report", "docs", str(page), *results],
        [["torch"], "harness", "report", "page", "--out", plots, *results],
        [["torch"], "harness", "report", "figures", "--out", plots, *results],
    ]
    command = [sys.executable, "-c", ALONE, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("tables", "repeatability"):
        assert done.stdout, name
    assert page.read_text().count("\n") > 4 and any((tmp_path / "plots").rglob("*.png"))
