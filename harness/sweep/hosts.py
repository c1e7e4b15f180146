"""The cases of a sweep shared by the processes that torchrun started, one or more for each GPU, on one host or several.

The store of torch.distributed has the queue. A process draws the next case when it has time, and sends its rows to the
first process, which writes them into the one results folder. Where a process ends early, torchrun ends those of its
host; `--resume` then measures what is missing.

Keys of the store:
    wanted/I    what is to be measured on case I, from the first process
    head        the number of cases that were drawn
    said/R/I    the I-th message of rank R: its environment, a row, a case that it finished, or its end
    stop        set when the writer ends, for whatever reason: nothing more is drawn
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from harness import progress
from harness.cases.catalogue import Case, Sweep
from harness.errors import GpuLost, ResultsError, UsageError
from harness.isolation import LIMIT_S, START_LIMIT_S
from harness.store.environment import EnvironmentFile, identifier
from harness.sweep.one_case import Task
from harness.sweep.records import Measurement, ResultsFolder
from harness.sweep.work import Choice, expected_ms

POLL_S = 0.02
SILENT_S = START_LIMIT_S + LIMIT_S  # without a word of any process before the first gives up
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # its environment variables


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one torchrun: this one's rank of all, its rank on its host, and the store that they share."""

    rank: int
    size: int
    local_rank: int
    store: Any


def group() -> Group | None:
    """The group that this process belongs to; None where torchrun did not start it.

    Raises UsageError where the variables that torchrun sets are missing or contradict each other.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    rank, local_rank, size, port = map(_number, ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not (0 <= local_rank <= rank < size and port > 0 and os.environ.get("MASTER_ADDR")):
        found = ", ".join(f"{name}={os.environ.get(name, '')[:60]}" for name in OF_TORCHRUN)
        raise UsageError(
            f"TORCHELASTIC_RUN_ID is set, but {found} are not of a process that torchrun started: start the command "
            "with torchrun, or 'unset TORCHELASTIC_RUN_ID'"
        )
    store, rank, size = next(rendezvous("env://"))
    return Group(rank, size, local_rank, PrefixStore("cuconv", store))


def _number(variable: str) -> int:
    """The whole number in an environment variable; -1 where there is none."""
    value = os.environ.get(variable, "")
    return int(value) if re.fullmatch("[0-9]{1,9}", value) else -1


class SharedWork:
    """The work of one process: it draws cases, and sends its rows to the first process."""

    def __init__(self, group: Group, cases: Sequence[Case], device: str, facts: dict[str, Any]):
        """device: the name of its folder under results/. facts: the process's report of its environment."""
        self._rank, self._store, self._cases = group.rank, group.store, cases
        self._said = 0
        self._say({"device": device, "name": identifier(facts), "facts": facts})

    def tasks(self) -> Iterator[Task]:
        """The tasks that this process draws. Raises ResultsError where the first process is gone."""
        while (index := self._draw()) is not None:
            wanted = json.loads(self._store.get(f"wanted/{index}"))
            rivals = None if wanted["rivals"] is None else frozenset(map(tuple, wanted["rivals"]))
            yield Task(self._cases[index], frozenset(map(tuple, wanted["done"])), rivals)
            self._say({"finished": index})
        self._say({"ended": True})

    def offered(self, count: int) -> None:
        """Do nothing: the progress bar moves by whole cases."""

    def append(self, row: Measurement) -> None:
        """Send a row to the first process."""
        self._say({"row": asdict(row)})

    def _draw(self) -> int | None:
        """The next case, or None where none is left."""
        try:
            index = int(self._store.add("head", 1)) - 1
            return index if index < len(self._cases) and not self._store.check(["stop"]) else None
        except DistError as error:
            raise _first_gone() from error

    def _say(self, message: dict[str, Any]) -> None:
        self._said += 1
        try:
            self._store.set(f"said/{self._rank}/{self._said}", json.dumps(message))
        except DistError as error:
            raise _first_gone() from error


class Writer:
    """The writer of all processes' rows, in a thread of the first.

    Use as a context manager: its end waits until all processes have ended, and raises what stopped the writer. After
    an exception it stops at once.
    """

    def __init__(
        self,
        group: Group,
        sweep: Sweep,
        choice: Choice,
        device: str,
        folder: ResultsFolder,
        environments: EnvironmentFile,
    ):
        """device: the name of the folder under results/ that all processes must measure for."""
        self._store, self._cases, self._choice = group.store, sweep.cases, choice
        self._device, self._folder, self._environments = device, folder, environments
        self._read = dict.fromkeys(range(group.size), 0)  # messages of the processes that have not ended
        self._error: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        for index, case in enumerate(self._cases):
            task = self._choice.task(case)
            wanted = {"done": sorted(task.done), "rivals": None if task.rivals is None else sorted(task.rivals)}
            self._store.set(f"wanted/{index}", json.dumps(wanted))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._stopped = kind is not None
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            with progress.weighed(sum(map(expected_ms, self._cases))) as bar:
                heard_at = time.monotonic()
                while self._read and not self._stopped:
                    if any([self._listen(rank, bar) for rank in list(self._read)]):
                        heard_at = time.monotonic()
                    elif time.monotonic() - heard_at > SILENT_S:
                        raise GpuLost(f"no process has said anything for {SILENT_S:.0f} s")
                    else:
                        time.sleep(POLL_S)
        except Exception as error:
            self._error = error
        finally:
            with suppress(DistError):  # torchrun, whose store it is, ends where a process was killed
                self._store.set("stop", "")

    def _listen(self, rank: int, bar: Any) -> bool:
        """Take in what a process has said since the last time; returns whether that is anything."""
        before = self._read[rank]
        while rank in self._read and self._store.check([key := f"said/{rank}/{self._read[rank] + 1}"]):
            message = json.loads(self._store.get(key))
            self._store.delete_key(key)
            self._read[rank] += 1
            self._take_in(message, rank, bar)
        return self._read.get(rank) != before

    def _take_in(self, message: dict[str, Any], rank: int, bar: Any) -> None:
        if "row" in message:
            self._folder.append(Measurement.from_json(message["row"]))
        elif "finished" in message:
            bar.update(expected_ms(self._cases[message["finished"]]))
        elif "ended" in message:
            del self._read[rank]
        elif message["device"] != self._device:
            raise UsageError(
                f"process {rank} measures on {message['device']}, the first one on {self._device}: a results "
                "folder is of one device, so start the command on hosts with equal GPUs"
            )
        elif message["name"] not in self._environments.environments:
            self._environments.enter(message["facts"])


def _first_gone() -> ResultsError:
    return ResultsError(
        "the first process, which writes the results, is gone: go on with the same command and --resume"
    )
