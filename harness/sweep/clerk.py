"""The clerk of a sweep that several processes measure: queues the cases, and writes what the processes send.

It runs in a thread of the first process, which has the results folder. `harness.sweep.shared_work` has the keys of
the store. The case of a process that dies is queued again, without the rows that came in.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from harness import progress
from harness.cases.catalogue import Sweep
from harness.errors import GpuLost, UsageError
from harness.store.environment import EnvironmentFile
from harness.sweep.one_case import Algorithm
from harness.sweep.records import Measurement, ResultsFolder
from harness.sweep.rivals import lacking_times
from harness.sweep.shared_work import BEAT_S, POLL_S, Group
from harness.sweep.work import Choice, expected_ms

DEAD_S = 30.0  # a process that gives no sign of life for so long counts as dead


class Clerk:
    """Use as a context manager: its end waits until everything is measured, and raises what stopped the clerk."""

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
        self._store, self._sweep, self._choice = group.store, sweep, choice
        self._device, self._folder, self._environments = device, folder, environments
        self._processes = [_Process(rank, group.store) for rank in range(group.size)]
        self._queue: list[int] = []  # the case at each position
        self._drawn_at: dict[int, float] = {}  # when a position that nobody took was first seen to be drawn
        self._missing = set(range(len(sweep.cases)))
        self._rows: dict[tuple[int, ...], dict[Algorithm, Measurement]] = {}  # that came in, of cases under way
        self._error: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Clerk:
        for index in range(len(self._sweep.cases)):
            self._enqueue(index)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._stopped = kind is not None
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            with progress.weighed(sum(map(expected_ms, self._sweep.cases))) as bar:
                while self._missing and not self._stopped:
                    count = len(self._sweep.cases)
                    bar.set_description_str(f"{count - len(self._missing)} of {count} cases", refresh=False)
                    heard = 0
                    for process in self._processes:
                        for message in process.messages():
                            self._take_in(message, process, bar)
                            heard += 1
                    self._queue_again()
                    if not heard:
                        time.sleep(POLL_S)
        except Exception as error:
            self._error = error
        finally:
            self._store.set("over", "")

    def _enqueue(self, index: int) -> None:
        """Queue a case, without what it has complete rows of."""
        task = self._choice.task(self._sweep.cases[index])
        rows = self._rows.get(task.case.key, {})
        lacking = lacking_times(rows.values(), self._device) if self._choice.other_times else set()
        done = task.done | (rows.keys() - lacking)
        item = {"case": index, "done": sorted(done), "rivals": None if task.rivals is None else sorted(task.rivals)}
        self._queue.append(index)
        self._store.set(f"task/{len(self._queue)}", json.dumps(item))

    def _take_in(self, message: dict[str, Any], process: _Process, bar: Any) -> None:
        if "row" in message:
            row = Measurement.from_json(message["row"])
            self._folder.append(row)
            self._rows.setdefault(row.case, {})[row.provider, row.algorithm] = row
        elif "finished" in message:
            index = self._queue[message["finished"] - 1]
            if index in self._missing:
                self._missing.remove(index)
                self._rows.pop(self._sweep.cases[index].key, None)
                bar.update(expected_ms(self._sweep.cases[index]))
        elif "left" in message:
            process.gone = True
        elif message["device"] != self._device:
            raise UsageError(
                f"process {process.rank} measures on {message['device']}, the first one on {self._device}: a results "
                "folder is of one device, so start the command on hosts with equal GPUs"
            )
        elif message["name"] not in self._environments.environments:
            self._environments.enter(message["facts"])

    def _queue_again(self) -> None:
        """Queue again what processes took and left, or drew and did not come to take. Raises GpuLost if all left."""
        gone = {process.rank for process in self._processes if process.is_gone()}
        if len(gone) == len(self._processes):
            raise GpuLost("no process is left that measures")
        if not gone:
            return
        drawn = min(int(self._store.add("head", 0)), len(self._queue))
        for position, index in enumerate(self._queue[:drawn], 1):
            queued_later = index in self._queue[position:]
            if index in self._missing and not queued_later and self._is_lost(position, gone):
                self._enqueue(index)

    def _is_lost(self, position: int, gone: set[int]) -> bool:
        """Whether no living process measures what is queued at a position that one has drawn."""
        if self._store.check([f"taken/{position}"]):
            return int(self._store.get(f"taken/{position}")) in gone
        now = time.monotonic()
        return now - self._drawn_at.setdefault(position, now) > DEAD_S


class _Process:
    """What the clerk knows of a process: the messages that it has read, and whether it lives."""

    def __init__(self, rank: int, store: Any):
        self.rank, self.gone, self._store = rank, False, store
        self._read = 0
        self._beats, self._changed = -1, time.monotonic()
        self._asked = 0.0

    def messages(self) -> list[dict[str, Any]]:
        """The messages that came in since the last call."""
        found = []
        while self._store.check([key := f"said/{self.rank}/{self._read + 1}"]):
            found.append(json.loads(self._store.get(key)))
            self._store.delete_key(key)
            self._read += 1
        return found

    def is_gone(self) -> bool:
        """Whether it has left, or gave no sign of life for DEAD_S."""
        now = time.monotonic()
        if self.gone or now - self._asked < BEAT_S:
            return self.gone
        self._asked = now
        if (beats := int(self._store.add(f"beat/{self.rank}", 0))) != self._beats:
            self._beats, self._changed = beats, now
        elif now - self._changed > DEAD_S:
            progress.say(f"process {self.rank} gives no sign of life: the others measure its case")
            self.gone = True
        return self.gone
