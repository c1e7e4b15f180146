"""The supervisor of a sweep: it gives cases to a worker process, and starts another where one ends.

An algorithm that breaks its CUDA context, hangs or ends its process costs one row, and the sweep goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

from cuconv.core.problem import ConvProblem
from harness import precision, progress
from harness.contenders.base import Contender, Unavailable, load
from harness.contenders.registry import shown
from harness.isolation import Begins, Note, Say, WorkerEnded, started
from harness.sweep.one_case import Algorithm, Event, Offered, Options, Task, measure_case, rows_without_times
from harness.sweep.records import Measurement
from harness.sweep.rivals import lacking_times
from harness.sweep.turns import Turns
from harness.sweep.work import Work

MOST_ENDS = 2  # an algorithm that ended two processes of a sweep is not tried again

Load = Callable[[Iterable[str], str, Say], Mapping[str, Contender]]


def load_contenders(providers: Iterable[str], precision: str, say: Say) -> dict[str, Contender]:
    """The contenders that this machine can load by provider; says once which it cannot, and why."""
    entered = {}
    for provider in providers:
        try:
            entered[provider] = load(provider, precision)
        except Unavailable as reason:
            say(f"{provider} does not take part: {reason}")
    return entered


def run(problems: list[ConvProblem], work: Work, options: Options, load: Load = load_contenders) -> None:
    """Measure all work; problems are those of the whole sweep, for which contenders prepare.

    load makes the contenders, in the worker process. Raises GpuLost where no process can begin to measure.
    """
    with closing(_Supervisor(problems, options, load)) as supervisor:
        for task in work.tasks():
            supervisor.measure(task, work)


class _Supervisor:
    """The worker process that is running, and what the algorithms did to those before it."""

    def __init__(self, problems: list[ConvProblem], options: Options, load: Load):
        self._begin, self._options = partial(_begin, problems, options, load), options
        self._ends: Counter[Algorithm] = Counter()
        self._broken: dict[Algorithm, str] = {}  # what ended MOST_ENDS processes, and how
        self.worker = started(self._begin, progress.say)

    def close(self) -> None:
        """End the process that is running."""
        self.worker.end()

    def measure(self, task: Task, work: Work) -> None:
        """Measure a case. An algorithm that ends the process has a row that says so; the others follow in a new one."""
        done, in_vain = set(task.done), 0
        found: dict[Algorithm, Measurement] = {}
        broken = dict(self._broken)
        while in_vain < MOST_ENDS:
            rest = replace(task, done=frozenset(done), broken=broken)
            rows = 0
            try:
                for event in self.worker.measure(rest):
                    if isinstance(event, Measurement):
                        done.add((event.provider, event.algorithm))
                        found[event.provider, event.algorithm] = event
                        work.append(event)
                        rows += 1
                    elif isinstance(event, Offered):
                        work.offered(event.count)
                    elif isinstance(event, Note):
                        progress.say(event.text)
                return
            except WorkerEnded as end:
                begun = end.begun
                rest = replace(rest, done=frozenset(done))
                for row in rows_without_times(begun, rest, self._options, end.status, str(end)):
                    done.add((row.provider, row.algorithm))
                    work.append(row)
                    rows += 1
                if begun.provider:
                    broken[begun.provider, begun.algorithm] = str(end)
                if self._options.other_times:
                    done -= lacking_times(found.values(), self._options.device_slug) - broken.keys()
                self._start_again(begun, task, str(end))
            in_vain = 0 if rows else in_vain + 1  # where the process ends after all rows are there
            if not begun.provider:  # the case's tensors: all of its algorithms have that row
                return

    def _start_again(self, begun: Begins, task: Task, why: str) -> None:
        """Start another process, and note what ended the last one."""
        what = shown(begun.provider, begun.algorithm).strip() if begun.provider else "making the tensors"
        progress.say(f"{what} on {task.case.label}: {why}; the sweep goes on in another process")
        if begun.provider:
            algorithm = (begun.provider, begun.algorithm)
            self._ends[algorithm] += 1
            if self._ends[algorithm] == MOST_ENDS:
                self._broken[algorithm] = (
                    f"not tried: it ended {MOST_ENDS} processes, the last one on {task.case.label}: {why}"
                )
        self.worker.end()
        self.worker = started(self._begin, lambda text: None, f"after {what} on {task.case.label} ")


def _begin(problems: list[ConvProblem], options: Options, load: Load, say: Say) -> Callable[[Task], Iterator[Event]]:
    """Load the contenders in a worker process; returns what measures a task."""
    precision.set_for_process(options.precision)
    if options.device.type == "cuda":
        torch.cuda.set_device(options.device)
    torch.set_grad_enabled(False)
    entered = load(options.providers, options.precision, say)
    turns = Turns.on(options.device)
    with turns.taken():  # one process compiles kernels, and the others find them in the cache
        for contender in entered.values():
            contender.epilogue = options.epilogue
            contender.begin(problems, options.algorithms)
    return partial(measure_case, entered=entered, options=options, turns=turns)
