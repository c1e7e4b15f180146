"""Settings of the GPU tests: they are skipped without a GPU, and write the GPU proof where the library's have passed.

The tests in harness/ are of the benchmark, and say nothing about the kernels.
"""

import os
from pathlib import Path

import pytest
import torch

from cuconv.runtime.background import waiting
from harness.store import proof

HERE = Path(__file__).parent
KEPT_BYTES = 1 << 30
# Options that leave tests out; pytest-xdist does not report what they have deselected.
NARROWING = ("keyword", "markexpr", "maxfail", "deselect", "ignore", "ignore_glob", "lf", "stepwise")
SLOW = ("test_supervisor.py",)  # files whose tests start first, so that no worker is left alone with them at the end


def pytest_configure(config):
    """Give each worker of pytest-xdist one GPU: worker n takes number n modulo their count."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw") and "CUDA_VISIBLE_DEVICES" not in os.environ:
        gpus = torch.cuda.device_count()  # by NVML, so that no context is made
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker[2:]) % max(1, gpus))


def pytest_collection_modifyitems(items):
    """Start with the slow tests. Skip the tests of this folder where there is no GPU."""
    items.sort(key=lambda item: item.path.name not in SLOW)
    if torch.cuda.is_available():
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


@pytest.fixture(autouse=True)
def memory_given_back():
    """Give back what torch keeps of freed memory after a test with large tensors: a dozen workers share a GPU."""
    yield
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def no_gradients():
    """Run every test without recording gradients, which conv2d refuses, and with the kernels of its plans."""
    with torch.no_grad(), waiting():
        yield


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Write results/DEVICE/verified.json after a run on a GPU of all tests in this folder, if the library's passed.

    Only the process that has seen every test may do that: a worker of pytest-xdist has seen its share of them.
    """
    if hasattr(config, "workerinput"):
        return
    partial = any(getattr(config.option, name, None) for name in NARROWING)
    whole = [Path(argument).resolve() for argument in config.args] == [HERE]
    proves = whole and not partial and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if not (proves and torch.cuda.is_available() and all_passed(terminalreporter.stats)):
        terminalreporter.write_line("no proof written: it takes every test of the library on a GPU ('make test-gpu')")
        return
    path = proof.write(len(of_library(terminalreporter.stats.get("passed", []))))
    terminalreporter.write_line(f"proof written: {path}")


def of_library(reports):
    """The reports that are not of the benchmark's tests."""
    return [report for report in reports if "tests/gpu/harness/" not in report.nodeid]


def all_passed(stats):
    """Whether a run has tests of the library, all of which passed: none failed, was skipped or was left out."""
    others = [of_library(stats.get(outcome, [])) for outcome in ("failed", "error", "skipped", "xfailed", "xpassed")]
    return bool(of_library(stats.get("passed", []))) and not any(others) and not stats.get("deselected")


def pytest_report_header():
    """The GPU and the version of torch, at the top of the report."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"GPU: {name}, torch {torch.__version__}"
