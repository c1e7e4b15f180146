"""The process that measures the cases of a sweep on one device, one after the other, for a supervisor.

A convolution under test may break its CUDA context, hang, or end its process. All of that stays in here. What the
process says goes through a pipe: `one_case.Begins` before anything that may break, then the rows.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from cuconv.core.problem import ConvProblem
from harness import precision
from harness.contenders.base import Contender, Unavailable, load
from harness.errors import GpuLost, UserError
from harness.sweep.one_case import Begins, Event, Options, Task, measure_case

LIMIT_S = 300.0  # between two messages about a case; the runs of one algorithm take a minute at most
START = "spawn"  # the start method of multiprocessing: a CUDA context does not survive a fork

Say = Callable[[str], None]
Load = Callable[[Iterable[str], str, Say], Mapping[str, Contender]]


class WorkerEnded(Exception):
    """The process ended, or was ended because it hung; `begun` is what it was at, `status` that of the rows."""

    def __init__(self, status: str, why: str, begun: Begins | None):
        super().__init__(why)
        self.status, self.begun = status, begun


@dataclass(frozen=True, slots=True)
class _Said:
    """A sentence for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class _Failed:
    """The reason why the process ends: the message of a GpuLost."""

    why: str


class _Ready:
    """The contenders are loaded, or the case is measured: the process waits for the next."""


def load_contenders(providers: Iterable[str], precision: str, say: Say) -> dict[str, Contender]:
    """The contenders that this machine can load by provider; says once which it cannot, and why."""
    entered = {}
    for provider in providers:
        try:
            entered[provider] = load(provider, precision)
        except Unavailable as reason:
            say(f"{provider} does not take part: {reason}")
    return entered


class Worker:
    """A running process that measures cases, until `end`."""

    def __init__(self, problems: list[ConvProblem], options: Options, load: Load, say: Say):
        """Start the process and wait until it is ready; problems: those of the whole sweep.

        load runs in the process. say gets what it says to the user. Raises the UserError that ends it, or WorkerEnded.
        """
        context: Any = multiprocessing.get_context(START)  # BaseContext has no Process for mypy
        self._events, theirs = context.Pipe(duplex=False)
        tasks, self._tasks = context.Pipe(duplex=False)
        self._process = context.Process(target=_main, args=(tasks, theirs, problems, options, load))
        # Ctrl-C is the supervisor's: what is blocked here stays blocked in the process, while it starts as well.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for end in (tasks, theirs):  # the process has its own: so its end is an end of file here
            end.close()
        try:
            for event in self._until_ready(None):
                say(event.text)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the process at once: it holds nothing that is worth keeping."""
        self._process.kill()
        self._process.join()
        self._tasks.close()
        self._events.close()

    def measure(self, task: Task) -> Iterator[Event]:
        """The events of a case as they come. Raises WorkerEnded."""
        try:
            self._tasks.send(task)
        except OSError:
            raise self._ended(None) from None
        yield from self._until_ready(LIMIT_S)

    def _until_ready(self, limit_s: float | None) -> Iterator[Any]:
        begun: Begins | None = None
        while True:
            try:
                if not self._events.poll(limit_s):
                    raise WorkerEnded("timeout", f"no answer within {limit_s:.0f} s, so its process was ended", begun)
                event = self._events.recv()
            except (EOFError, OSError):
                raise self._ended(begun) from None
            if isinstance(event, _Ready):
                return
            if isinstance(event, UserError):
                raise event
            if isinstance(event, _Failed):
                raise WorkerEnded("error", event.why, begun)
            if isinstance(event, Begins):
                begun = event
            yield event

    def _ended(self, begun: Begins | None) -> WorkerEnded:
        """The exception that tells how the process ended by itself."""
        self._process.join(10)
        code = self._process.exitcode
        how = "closed its pipe" if code is None else _signal(-code) if code < 0 else f"ended with exit code {code}"
        return WorkerEnded("error", f"its process {how}", begun)


def _signal(number: int) -> str:
    name = signal.Signals(number).name
    hint = ", which the system sends where memory runs out" if number == signal.SIGKILL else ""
    return f"was ended by the signal {name}{hint}"


def _main(tasks: Connection, events: Connection, problems: list[ConvProblem], options: Options, load: Load) -> None:
    """The life of the process, which ends with its supervisor."""
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    precision.set_for_process(options.precision)
    if options.device.type == "cuda":
        torch.cuda.set_device(options.device)
    torch.set_grad_enabled(False)
    try:
        entered = load(options.providers, options.precision, lambda text: events.send(_Said(text)))
        for contender in entered.values():
            contender.begin(problems, options.algorithms)
        while True:
            events.send(_Ready())
            for event in measure_case(tasks.recv(), entered, options):
                events.send(event)
    except UserError as error:
        events.send(error)
    except GpuLost as error:
        events.send(_Failed(str(error)))
        os._exit(1)  # the libraries' own clean-up needs the context that is broken
    except (EOFError, BrokenPipeError):  # the supervisor has ended
        os._exit(1)


def _end_with(parent: Any) -> None:
    """End this process with another, also while a call hangs."""
    parent.join()
    os._exit(1)
