"""Commands that need not import torch once more in each of their processes, which takes seconds.

python -m tests.harness.forking ...: harness.run, whose worker is forked. It starts and ends as a user's process does.
`started`: the same in a process that is forked as well.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from pathlib import Path


def started(module: str, *arguments, said: Path) -> multiprocessing.Process:
    """A process, which a server forks, that runs a module as `python -m` does; what it says goes to a file."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_life, args=(module, [str(argument) for argument in arguments], said))
    process.start()
    return process


def _life(module: str, arguments: list[str], said: Path) -> None:
    # A shell without job control starts its background jobs, and with them this test, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *arguments]
    with said.open("w") as sys.stdout:
        sys.stderr = sys.stdout
        for stream in (1, 2):  # of processes that it starts
            os.dup2(sys.stdout.fileno(), stream)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from harness import run
    from harness.sweep import worker

    worker.START = "fork"
    sys.exit(run.main())
