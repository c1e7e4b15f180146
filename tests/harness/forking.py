"""Commands that need not import torch once more in each of their processes, which takes seconds."""

import multiprocessing
import os
import runpy
import signal
import sys
from pathlib import Path

# What a user's `python -m harness.run` is, except that its worker is forked: harness sees -m harness.run, as there.
_RUN = """
import runpy, sys
from harness import isolation
isolation.START = "fork"
sys.argv[:3] = [sys.argv[2]]
runpy.run_module("harness.run", run_name="__main__", alter_sys=True)
"""
RUN = [sys.executable, "-c", _RUN, "-m", "harness.run"]


def started(module: str, *arguments, said: Path, full: int | None = None) -> multiprocessing.Process:
    """A process forked by a server, as its workers are, that does what `python -m` does; what it says is in a file.

    full: the standard stream, 1 or 2, that goes to a full device instead.
    """
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_life, args=(module, [str(argument) for argument in arguments], said, full))
    process.start()
    return process


def _life(module: str, arguments: list[str], said: Path, full: int | None) -> None:
    from harness import isolation, streams

    isolation.START = "fork"
    # A shell without job control starts its background jobs, and with them this test, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *arguments]
    with said.open("w") as file, open("/dev/full", "w") as full_device:
        for stream in (1, 2):  # also of processes that it starts
            os.dup2((full_device if stream == full else file).fileno(), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
        streams.secure()  # as the package does for a command
        runpy.run_module(module, run_name="__main__", alter_sys=True)
