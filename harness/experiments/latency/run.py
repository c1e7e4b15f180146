"""Starts the processes of an experiment one after the other, reads the rows that they write, and moves the bar."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import progress
from harness.errors import ResultsError
from harness.experiments.latency.plan import Process
from harness.experiments.latency.rows import CONVERT, SIZE, Group, Latency

MEASURE, START_PROGRAM = "harness.experiments.latency.measure", "harness.experiments.latency.start"
CACHE_VARIABLE = "CUCONV_CACHE_DIR"
LINES = 20  # the last lines of what a failed process said


class ProcessFailed(Exception):
    """A process ended with an error; the message is the end of what it said."""


def measure(processes: Sequence[Process], seed: int) -> Iterator[list[Latency]]:
    """Run the processes; with each row all those of its group are returned.

    Processes that fail, or need one that did, are left out. At the end ResultsError names them. seed: of the sizes.
    """
    failed: list[Process] = []
    groups: dict[Group, list[Latency]] = {}
    begin = 0.0
    with (
        tempfile.TemporaryDirectory(prefix="cuconv-latency-") as folder,
        progress.weighed(sum(process.seconds for process in processes)) as bar,
    ):
        for process in processes:
            bar.set_description(process.title)
            if process.needs in [other.group for other in failed]:
                failed.append(process)
                continue
            rows = groups.setdefault(process.group, [])
            try:
                with closing(_rows(process, seed, Path(folder))) as found:
                    for number, row in enumerate(found, 1):
                        rows.append(Latency(*process.group, **row))
                        bar.update(begin + process.start_s + number * process.row_s - bar.n)
                        yield rows
            except ProcessFailed as error:
                progress.say(f"{process.title} failed:\n{error}")
                failed.append(process)
            begin += process.seconds
            bar.update(begin - bar.n)
    if failed:
        raise ResultsError(
            f"{len(failed)} of {len(processes)} processes failed or need one that did, so that rows are missing or "
            f"old: {'; '.join(dict.fromkeys(process.title for process in failed))}"
        )


def _rows(process: Process, seed: int, folder: Path) -> Generator[dict[str, Any], None, None]:
    """The rows of a process as it writes them; closing kills it. Raises ProcessFailed.

    folder: of the models and compile caches. A cache does not exist before its first process.
    """
    use = SIZE if process.what == SIZE else CONVERT  # a start reads what convert has left
    cache = folder / f"{use}-{process.contender}-{process.network.replace('/', '-')}"
    variables = os.environ | {CACHE_VARIABLE: str(cache)}
    with (
        # A pipe that nobody reads would fill up.
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            [sys.executable, "-m", *_arguments(process, seed, folder)],
            stdout=subprocess.PIPE, stderr=errors, text=True, env=variables,
        ) as child,
    ):  # fmt: skip
        assert child.stdout is not None
        try:
            for line in child.stdout:
                yield json.loads(line)
            child.wait()
        finally:
            child.kill()  # nothing where it has ended
        if child.returncode == -signal.SIGINT:
            raise KeyboardInterrupt
        if child.returncode:
            errors.seek(0)
            said = errors.read().splitlines()[-LINES:]
            raise ProcessFailed("\n".join(said) or f"it said nothing and ended with {child.returncode}")


def _arguments(process: Process, seed: int, folder: Path) -> list[str]:
    """The module that a process runs and its arguments, made just before the start."""
    model = str(folder / f"{process.contender}.pt")
    if process.what == SIZE:
        return [MEASURE, SIZE, process.typed, process.contender, str(process.rows), str(seed)]
    if process.what == CONVERT:
        return [MEASURE, CONVERT, process.typed, process.contender, model]
    return [START_PROGRAM, model, repr(time.time())]
