"""Measurements in a child process, so that a crash, a hang or a broken CUDA context loses only what caused it.

The process sends events through a pipe: `Begins` before anything that may break, then the rows. Experiments use
`rows_of_cases`; a sweep has a loop of its own in `harness.sweep.supervisor`, which gives up on repeated offenders.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any

from harness import progress
from harness.errors import GpuLost, ResultsError, UserError

LIMIT_S = 300.0  # between two events of a case
START_LIMIT_S = 3600.0  # until a process is ready: on few cores its kernels may compile for most of an hour
START = "spawn"  # the start method of multiprocessing: a CUDA context does not survive a fork

Say = Callable[[str], None]
Measure = Callable[[Any], Iterable[Any]]  # the events of a case: Begins, Note, and whatever the caller knows
Begin = Callable[[Say], Measure]  # called once in a process, before its first case


@dataclass(frozen=True, slots=True)
class Begins:
    """Sent before a step that may end the process: a contender's work, or that of one of its algorithms.

    Without a contender it is what all of them share, such as the case's tensors.
    """

    provider: str = ""
    algorithm: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the user."""

    text: str


class Lacks(Note):
    """A sentence for the user about an error that leaves the case without some of its rows."""


class WorkerEnded(Exception):
    """The process ended, or was ended because it hung; `begun` is what it was at.

    status: that of its rows, "error", or "timeout" where it hung.
    """

    def __init__(self, status: str, why: str, begun: Begins):
        super().__init__(why)
        self.status, self.begun = status, begun


@dataclass(frozen=True, slots=True)
class _Failed:
    """The reason why the process ends, in a line."""

    why: str


class _Ready:
    """The process waits for the next case."""


class Worker:
    """A running process that measures cases, until `end`."""

    def __init__(self, begin: Begin, say: Say):
        """Start the process and wait until it is ready.

        begin runs in the process, so it is a function that pickle finds by its name, or a partial of one. say gets what
        it says to the user meanwhile. Raises the UserError that ends it, or WorkerEnded.
        """
        context: Any = multiprocessing.get_context(START)  # BaseContext has no Process for mypy
        self._events, theirs = context.Pipe(duplex=False)
        tasks, self._tasks = context.Pipe(duplex=False)
        self._process = context.Process(target=_main, args=(tasks, theirs, begin))
        # Ctrl-C is the supervisor's: what is blocked here stays blocked in the process, while it starts as well.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for end in (tasks, theirs):  # the process has its own: so its end is an end of file here
            end.close()
        try:
            for event in self._until_ready(START_LIMIT_S):
                say(event.text)
        except BaseException:
            self.end()
            raise

    def kill(self) -> None:
        """End the process at once, from any thread; the one that measures with it finds that it has ended."""
        self._process.kill()

    def end(self) -> None:
        """End the process at once: it holds nothing that is worth keeping."""
        self.kill()
        self._process.join()
        self._tasks.close()
        self._events.close()

    def measure(self, task: Any) -> Iterator[Any]:
        """The events of a case as they come. Raises WorkerEnded."""
        try:
            self._tasks.send(task)
        except OSError:
            raise self._ended(Begins()) from None
        yield from self._until_ready(LIMIT_S)

    def _until_ready(self, limit_s: float) -> Iterator[Any]:
        begun = Begins()
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

    def _ended(self, begun: Begins) -> WorkerEnded:
        """The exception that tells how the process ended by itself."""
        self._process.join(10)
        code = self._process.exitcode
        how = "closed its pipe" if code is None else _signal(-code) if code < 0 else f"ended with exit code {code}"
        return WorkerEnded("error", f"its process {how}", begun)


def rows_of_cases(
    cases: Iterable[Any],
    begin: Callable[[Hashable], Measure],
    failed: Callable[[Any, WorkerEnded], Iterable[Any]],
    process: Callable[[Any], Hashable] = lambda case: None,
    gpus: Sequence[str] = ("",),
) -> Iterator[tuple[Any, str, list[Any]]]:
    """Each case, the GPU that it was measured on, and its rows, as they come; processes that may end measure them.

    What ends a process has the rows of `failed`. The case is then measured again without it, in another process. Raises
    GpuLost where no process can begin to measure, the UserError that ends a process, and at the end ResultsError where
    a case lacks rows.

    begin: called in a process with its key; it returns what measures (case, what to leave out).
    failed: the rows of what ended the process of a case. process: the key of a case's process; cases that follow one
    another on a GPU with equal keys share a process.
    gpus: those that share the cases, each as CUDA_VISIBLE_DEVICES names it: a process sees its own alone. "" stands for
    the current one.
    """
    lacking: list[str] = []
    processes = _Processes()
    in_turn = partial(_in_turn, begin=begin, failed=failed, process=process, lacking=lacking, processes=processes)
    yield from _shared(cases, in_turn, gpus, processes) if len(gpus) > 1 else in_turn(cases, gpus[0])
    if lacking:
        raise ResultsError(
            f"errors prevented rows of {'; '.join(dict.fromkeys(lacking))}: a file that is written whole stays as it "
            "was, so measure again"
        )


class _Processes:
    """The processes that measure, one for each GPU, which can all be ended from another thread."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: dict[str, Worker] = {}
        self._lock = threading.Lock()

    def runs(self, gpu: str, worker: Worker) -> bool:
        """Note that a process runs on a GPU. False where all have been stopped, and this one as well."""
        with self._lock:
            self._running[gpu] = worker
            if self.stopped:
                worker.kill()
            return not self.stopped

    def stop(self) -> None:
        """End all processes, and those that begin later."""
        with self._lock:
            self.stopped = True
            for worker in self._running.values():
                worker.kill()


def _shared(
    cases: Iterable[Any],
    in_turn: Callable[[Iterable[Any], str], Iterator[Any]],
    gpus: Sequence[str],
    processes: _Processes,
) -> Iterator[Any]:
    """The cases and rows of all GPUs, as they come. A thread for each GPU draws the next case when it has time.

    in_turn: yields those of one GPU. After an error on one, the cases that the others have finished come before it is
    raised.
    """
    found: Queue[Any] = Queue()  # what to yield, an exception to raise, or None where a GPU has no case any more
    left, lock, end = iter(cases), threading.Lock(), object()

    def drawn() -> Iterator[Any]:
        while not processes.stopped:
            with lock:
                case = next(left, end)
            if case is end:
                return
            yield case

    def run(gpu: str) -> None:
        try:
            for one in in_turn(drawn(), gpu):
                found.put(one)
            found.put(None)
        except BaseException as error:
            found.put(error)

    for gpu in gpus:
        threading.Thread(target=run, args=(gpu,), daemon=True).start()
    running, error = len(gpus), None
    try:
        while running and error is None:
            one = found.get()
            if isinstance(one, BaseException):
                error = one
            elif one is None:
                running -= 1
            else:
                yield one
    finally:
        processes.stop()
    if error is not None:
        while not found.empty():
            one = found.get()
            if isinstance(one, tuple):
                yield one
        raise error


def _in_turn(
    cases: Iterable[Any],
    gpu: str,
    begin: Callable[[Hashable], Measure],
    failed: Callable[[Any, WorkerEnded], Iterable[Any]],
    process: Callable[[Any], Hashable],
    lacking: list[str],
    processes: _Processes,
) -> Iterator[tuple[Any, str, list[Any]]]:
    """Each case, the GPU and its rows. A case that lacks rows is added to `lacking`."""
    worker: Worker | None = None
    key: Hashable = None
    try:
        for case in cases:
            rows: list[Any] = []
            broken: set[Begins] = set()
            while True:
                if worker is not None and key != process(case):
                    worker.end()
                    worker = None
                if worker is None:
                    key = process(case)
                    worker = started(partial(_begun, begin, key, gpu), progress.say)
                    if not processes.runs(gpu, worker):
                        return
                try:
                    yield case, gpu, [*rows, *_measured(worker, case, broken, lacking)]
                    break
                except WorkerEnded as end:
                    if processes.stopped:
                        return
                    worker.end()
                    worker = None
                    begun = end.begun
                    progress.say(f"{begun.provider or 'preparing'} on {case}: {end}; it goes on in another process")
                    # The rows of what ends a second process are there already.
                    of_end = [] if begun in broken else list(failed(case, end))
                    rows += of_end
                    if not of_end:
                        lacking.append(str(case))
                    if not begun.provider or begun in broken:
                        yield case, gpu, rows
                        break
                    broken.add(begun)
    finally:
        if worker is not None:
            worker.end()


def _begun(begin: Callable[[Hashable], Measure], key: Hashable, gpu: str, say: Say) -> Measure:
    """The function that measures the cases of a process on a GPU, by its key; nothing is said while it begins."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA reads it when the process first uses it, which is later
    return begin(key)


def _measured(worker: Worker, case: Any, broken: set[Begins], lacking: list[str]) -> list[Any]:
    """The rows of a case, whose notes are printed. A case that lacks rows is added to `lacking`. Raises WorkerEnded."""
    found = []
    for event in worker.measure((case, frozenset(broken))):
        if isinstance(event, Note):
            progress.say(event.text)
            lacking += [str(case)] * isinstance(event, Lacks)
        elif not isinstance(event, Begins):
            found.append(event)
    return found


def started(begin: Begin, say: Say, when: str = "") -> Worker:
    """A process that is ready. Raises GpuLost, whose message starts with `when`, where it ends before."""
    try:
        return Worker(begin, say)
    except WorkerEnded as end:
        raise GpuLost(f"{when}no process can begin to measure: {end}") from None


def _signal(number: int) -> str:
    name = next((one.name for one in signal.Signals if one == number), str(number))  # not all have a name
    hint = ", which the system sends where memory runs out" if number == signal.SIGKILL else ""
    return f"was ended by the signal {name}{hint}"


def _main(tasks: Connection, events: Connection, begin: Begin) -> None:
    """The life of the process, which ends with the one that started it."""
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    try:
        measure = begin(lambda text: events.send(Note(text)))
        while True:
            events.send(_Ready())
            for event in measure(tasks.recv()):
                events.send(event)
    except UserError as error:
        events.send(error)
    except GpuLost as error:
        events.send(_Failed(str(error)))
        os._exit(1)  # the libraries' own clean-up needs the context that is broken
    except (EOFError, BrokenPipeError):  # the other process has ended
        os._exit(1)
    except Exception as error:
        traceback.print_exc()
        events.send(_Failed(f"{type(error).__name__}: {error}".partition("\n")[0]))
        os._exit(1)


def _end_with(parent: Any) -> None:
    """End this process with another, also while a call hangs."""
    parent.join()
    os._exit(1)
