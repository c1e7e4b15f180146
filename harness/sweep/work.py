"""The cases of a sweep as a list of work: what is to be measured next, and where the rows go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from harness import progress
from harness.cases.catalogue import Case, Sweep
from harness.sweep.one_case import Algorithm, Task
from harness.sweep.records import Measurement, ResultsFolder
from harness.sweep.rivals import Entrants

# The expected time of a case, for the progress bar: a part that every case takes, and arithmetic.
CASE_MS = 300
CASE_FLOP_PER_MS = 5e7


class Work(Protocol):
    """What a supervisor measures: it takes tasks one by one, and hands in each row as soon as it is there."""

    def tasks(self) -> Iterator[Task]:
        """The tasks, until the sweep is measured. Asking for the next says that the last one is finished."""

    def offered(self, count: int) -> None:
        """The task under way measures this many algorithms."""

    def append(self, row: Measurement) -> None:
        """Keep a row of the task under way."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The part of a sweep's cases that is measured: rows that are not done, of rivals that take part.

    done: (provider, algorithm) pairs by the case's key. entrants None stands for all rivals.
    """

    done: dict[tuple[int, ...], frozenset[Algorithm]]
    entrants: Entrants | None = None

    def task(self, case: Case) -> Task:
        """The task of a case: the algorithms that are done, and the rivals that take part."""
        rivals = None if self.entrants is None else self.entrants.get(case.key, frozenset())
        return Task(case, self.done.get(case.key, frozenset()), rivals)


class OwnWork:
    """All the cases of a sweep, measured by one supervisor into an open results folder."""

    def __init__(self, sweep: Sweep, choice: Choice, folder: ResultsFolder):
        self._sweep, self._choice, self._folder = sweep, choice, folder
        self._bar: Any = None
        self._weight, self._offers, self._rows = 0.0, 0, 0

    def tasks(self) -> Iterator[Task]:
        """The cases in the order of the sweep; a progress bar shows how far it is."""
        cases, expected = self._sweep.cases, [expected_ms(case) for case in self._sweep.cases]
        with progress.weighed(sum(expected)) as self._bar:
            for number, (case, weight) in enumerate(zip(cases, expected, strict=True), 1):
                self._bar.set_description_str(f"case {number}/{len(cases)} {case.label}")
                self._weight, self._offers, self._rows = weight, 0, 0
                end = self._bar.n + weight
                yield self._choice.task(case)
                self._bar.update(end - self._bar.n)

    def offered(self, count: int) -> None:
        """Let the bar move by equal parts of the case; of a case that is measured again the first count stays."""
        self._offers = self._offers or count

    def append(self, row: Measurement) -> None:
        """Write a row to the folder. The rows of the second pass do not move the bar."""
        self._folder.append(row)
        self._rows += 1
        if self._rows <= self._offers:
            self._bar.update(self._weight / self._offers)


def expected_ms(case: Case) -> float:
    """The time that a case is expected to take, to weigh it against others."""
    return CASE_MS + case.problem.flop / CASE_FLOP_PER_MS
