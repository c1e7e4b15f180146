"""Ctrl-C while a command still imports its packages, which takes seconds."""

import os
import signal
import subprocess
import sys

import pytest


def obeys_interrupts():
    """A shell without job control starts its background jobs, and with them this test, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("command", ["harness.run", "harness accuracy", "harness tune"])
def test_an_interrupt_during_the_imports_has_no_traceback(tmp_path, command):
    (tmp_path / "torch").mkdir()
    # The signal arrives between two lines of Python, so the sleep is not reached where it ends the process.
    (tmp_path / "torch" / "__init__.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        preexec_fn=obeys_interrupts,
    )
    assert done.returncode == -signal.SIGINT and done.stderr == ""
