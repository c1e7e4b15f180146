"""GPU tests: skipped without a GPU; when all of them pass, the proof of the kernels is written."""

from pathlib import Path

import pytest
import torch

from harness.results import proof

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Write results/DEVICE/verified.json after a whole, fully passing run on a GPU."""
    stats = terminalreporter.stats
    partial = config.option.keyword or config.option.markexpr or stats.get("deselected")
    whole = [Path(argument).resolve() for argument in config.args] == [HERE]
    if exitstatus or partial or not whole or stats.get("skipped") or not torch.cuda.is_available():
        terminalreporter.write_line("no proof written: it takes every GPU test, passed, on a GPU ('make test-gpu')")
        return
    path = proof.write(len(stats["passed"]))
    terminalreporter.write_line(f"proof written: {path}")


def pytest_report_header():
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"GPU: {name}, torch {torch.__version__}"
