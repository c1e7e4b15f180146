"""Fixtures of the harness's tests: a server that forks processes, and the texts of figures."""

import multiprocessing
from multiprocessing import forkserver
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="session")
def server_that_forks():
    """Start the server of multiprocessing's "forkserver", which imports torch once for all processes that it forks.

    It looks for modules where a new interpreter does, and tells nobody that it has not found them: they are found from
    this folder, whatever folder is the current one of the first test that needs a process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        multiprocessing.set_forkserver_preload(["harness.run", "harness.tune.costs_file", "tests.harness.sweep.faulty"])
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def fast_start(monkeypatch):
    """Fork the workers of sweeps, and the processes of fits; the server that does it never used a GPU."""
    from harness import isolation
    from harness.tune import costs_file

    for module in (isolation, costs_file):
        monkeypatch.setattr(module, "START", "forkserver")


@pytest.fixture(autouse=True)
def fp32():
    """Let the process measure FP32 again after a test whose command chose otherwise."""
    from harness import precision

    yield
    precision.set_for_process(precision.FP32)


@pytest.fixture(scope="session")
def texts_of():
    """A function that returns each text of a figure by its file, for figures that are saved from now on."""
    from matplotlib.text import Text

    from harness.report.figures import style

    save, texts = style.save, {}

    def kept(figure, stem):
        path = save(figure, stem)
        texts[path] = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", kept)
        yield texts.__getitem__
