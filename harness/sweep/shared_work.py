"""The cases of a sweep shared by the processes that torchrun started, one for each GPU, on one host or several.

The store of torch.distributed has the queue. A process draws the next position of it when it has time, and sends its
rows to the first process, whose clerk (`harness.sweep.clerk`) writes them into the one results folder.

Keys of the store:
    task/P      the task at position P of the queue, from 1
    head        the number of positions that were drawn
    taken/P     the rank that drew P and measures it
    beat/R      rank R counts in it while it lives
    said/R/I    the I-th message of rank R: its environment, a row, the position that it finished, or that it left
    over        set when nothing is left to measure
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from harness.cases.catalogue import Case
from harness.errors import ResultsError, UsageError
from harness.store.environment import identifier
from harness.sweep.one_case import Algorithm, Task
from harness.sweep.records import Measurement

BEAT_S = 1.0  # between two signs of life
POLL_S = 0.02
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
    """The part of a process in the work: it takes tasks from the queue, and sends its rows to the clerk."""

    def __init__(self, group: Group, cases: Sequence[Case], device: str, facts: dict[str, Any]):
        """device: the name of its folder under results/. facts: the process's report of its environment."""
        self._group, self._store, self._cases = group, group.store, cases
        self._said = 0
        self._alive = True
        self._say({"device": device, "name": identifier(facts), "facts": facts})
        threading.Thread(target=self._beat, daemon=True).start()

    def tasks(self) -> Iterator[Task]:
        """The tasks that this process gets. Raises ResultsError where the clerk's host is gone."""
        while (position := self._take()) is not None:
            item = json.loads(self._store.get(f"task/{position}"))
            yield _task(self._cases, item)
            self._say({"finished": position})

    def offered(self, count: int) -> None:
        """The clerk's progress bar moves by whole cases."""

    def append(self, row: Measurement) -> None:
        """Send a row to the clerk."""
        self._say({"row": asdict(row)})

    def leave(self) -> None:
        """Measure no more; the case under way goes to another process."""
        self._alive = False
        self._say({"left": True})

    def _take(self) -> int | None:
        """The next position with a task, or None when all is measured."""
        try:
            position = int(self._store.add("head", 1))
            while not self._store.check([f"task/{position}"]):
                if self._store.check(["over"]):
                    return None
                time.sleep(POLL_S)
            self._store.set(f"taken/{position}", str(self._group.rank))
            return position
        except DistError as error:
            raise _clerk_gone() from error

    def _say(self, message: dict[str, Any]) -> None:
        self._said += 1
        try:
            self._store.set(f"said/{self._group.rank}/{self._said}", json.dumps(message))
        except DistError as error:
            raise _clerk_gone() from error

    def _beat(self) -> None:
        while self._alive:
            try:
                self._store.add(f"beat/{self._group.rank}", 1)
            except DistError:  # the next message tells it
                return
            time.sleep(BEAT_S)


def _task(cases: Sequence[Case], item: dict[str, Any]) -> Task:
    def pairs(stored: list[list[str]]) -> frozenset[Algorithm]:
        return frozenset((provider, algorithm) for provider, algorithm in stored)

    rivals = None if item["rivals"] is None else pairs(item["rivals"])
    return Task(cases[item["case"]], pairs(item["done"]), rivals)


def _clerk_gone() -> ResultsError:
    return ResultsError(
        "the first process, which writes the results, is gone: go on with the same command and --resume"
    )
