"""Whole networks: the time of a forward of every contender, its error, memory and energy, and its kernels by kind.

The contenders of one network and batch are prepared one after the other. Then each does a run in each round, in an
order that a seed shuffles anew for every round. So a GPU whose clock changes slows all of them alike.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from math import ceil, isfinite
from typing import Protocol

import torch

from harness.contenders.base import LAYOUTS
from harness.errors import UsageError, UserError
from harness.experiments.networks.contenders import Forward, Prepare
from harness.experiments.networks.kinds import by_kind
from harness.experiments.networks.models import Network, reference
from harness.experiments.networks.rows import EAGER, ERROR, GRAPH, MODES, OK, KernelsOfKind, NetworkEnergy, NetworkTime
from harness.isolation import Begins, Lacks, Note
from harness.precision import HALVES
from harness.stopwatch.gpu import check_alive, first_line, out_of_memory
from harness.stopwatch.graph import CapturedCalls
from harness.store.times import RUNS

RUN_US = 50_000.0  # the least duration of a run
MAX_FORWARDS = 2_000  # the most in a run
WARM_UP_FORWARDS, PROBE_FORWARDS, PROFILED_FORWARDS = 3, 3, 5
DETAIL_LENGTH = 200  # characters of an error in a row
TOLERANCE = 0.05  # the largest relative L2 error of an output that is not simply wrong; TF32 stays below 0.02


class Machine(Protocol):
    """The device that is measured. Tests replace it by a CPU."""

    device: torch.device

    def synchronize(self) -> None:
        """Wait for all work."""

    def mark(self) -> Callable[[], None]:
        """A function that waits for the work so far, and for no later work."""

    def capture(self, forward: Forward) -> Forward:
        """A replay of a CUDA graph of one forward; it returns the graph's output."""

    def allocated(self) -> int:
        """The bytes of all tensors on the device."""

    def peak(self, forward: Forward) -> int:
        """The most bytes of tensors during a forward."""

    def after_error(self, what: str, error: Exception) -> None:
        """Free memory after an error. Raises GpuLost where the error broke the CUDA context."""

    def release(self) -> None:
        """Give memory that no tensor uses back to the driver."""


class Gpu:
    """The current NVIDIA GPU as a Machine."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream()  # one for all captures: cuBLAS keeps a workspace for each stream
        images, weight = torch.zeros(2, 8, 8, 8, device=self.device), torch.zeros(8, 8, 3, 3, device=self.device)
        for stream in (torch.cuda.current_stream(), self._stream):  # libraries start here, not in a first forward
            with torch.cuda.stream(stream):
                torch.conv2d(images, weight).relu().flatten(1) @ torch.zeros(288, 8, device=self.device)
        torch.cuda.synchronize()

    def synchronize(self) -> None:
        """Wait for all work of the GPU."""
        torch.cuda.synchronize()

    def mark(self) -> Callable[[], None]:
        """A function that waits for the work so far of the current stream, and for no later work."""
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

    def capture(self, forward: Forward) -> Forward:
        """A replay of a CUDA graph of one forward, which ran before on the stream of the capture too."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            forward()
        return CapturedCalls(forward, 1, self._stream).replay

    def allocated(self) -> int:
        """The bytes of torch's tensors on the GPU."""
        return torch.cuda.memory_allocated()

    def peak(self, forward: Forward) -> int:
        """The most bytes of torch's tensors on the GPU during a forward."""
        torch.cuda.reset_peak_memory_stats()
        forward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def after_error(self, what: str, error: Exception) -> None:
        """Free memory after an error. Raises GpuLost where the error broke the CUDA context."""
        if out_of_memory(error):
            torch.cuda.empty_cache()
        check_alive(what, error)

    def release(self) -> None:
        """Give memory that no tensor uses back to the driver."""
        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Consumption:
    """A number of forwards, the seconds that they took, and the GPU's millijoules."""

    forwards: int
    seconds: float
    millijoules: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of a command: contenders by name, the precision, and the seed.

    consumption: measures what a CUDA graph takes, for rows of energy; None for none.
    """

    contenders: Mapping[str, Prepare]
    precision: str
    seed: int = 0
    runs: int = RUNS
    consumption: Callable[[Forward, Machine], Consumption] | None = None


@dataclass(slots=True, eq=False)
class _Entrant:
    """One contender in one mode: a call that is warm, and the microseconds of a forward in each run so far."""

    contender: str
    mode: str
    call: Forward
    forwards: int  # in a run
    facts: dict[str, object]
    runs_us: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """One network and batch: its model and images on the device once they are asked for, and how its rows are made."""

    network: Network
    batch: int
    settings: Settings
    model: Callable[[], torch.nn.Module]
    images: Callable[[], torch.Tensor]

    @property
    def label(self) -> str:
        return f"{self.network.label}, batch {self.batch}"

    def row(self, contender: str, mode: str, status: str, **measured: object) -> NetworkTime:
        return NetworkTime(
            self.network.name, self.network.source, self.batch, contender, self.settings.precision, mode,
            status, **measured,  # type: ignore[arg-type]
        )  # fmt: skip

    def prepare(self, contender: str) -> tuple[Forward, str]:
        """A contender's forward on a model of its own, in the precision asked for, and its detail; it has not run."""
        precision, model, images = self.settings.precision, deepcopy(self.model()), self.images()
        if precision in HALVES:
            dtype = LAYOUTS[precision][0].dtype
            model, images = model.to(dtype), images.to(dtype)
        prepared = self.settings.contenders[contender](model, images, precision)
        return prepared.forward, prepared.detail


Event = Begins | Note | NetworkTime | NetworkEnergy | KernelsOfKind


def cases(machine: Machine, settings: Settings) -> Callable[[Network, int], Case]:
    """A function that makes the case of a network and a batch; the model of the last network is kept."""
    seed, device = settings.seed, machine.device
    model_of = lru_cache(maxsize=1)(partial(_model, seed=seed, device=device))

    def case(network: Network, batch: int) -> Case:
        images = cache(partial(_images, network, batch, seed, device))
        return Case(network, batch, settings, lambda: model_of(network), images)

    return case


@torch.no_grad()
def measure(case: Case, machine: Machine, broken: Collection[Begins] = ()) -> Iterator[Event]:
    """A row for each contender and mode; then, where the settings have a `consumption`, one of energy for each graph.

    Contenders in `broken` are left out. Before a contender's work comes what begins.
    """
    # Without this torch would compile for all batches at once, and give up after some networks. It drops all that is
    # compiled, so no contender of a case may do it.
    torch.compiler.reset()
    contenders = [name for name in case.settings.contenders if Begins(name) not in broken]
    try:
        yield Begins()
        truth = reference(case.model(), case.images())
        if not bool(truth.isfinite().all()):
            raise ArithmeticError("the logits in float64 are not finite")
    except Exception as error:
        for contender in contenders:
            yield from _failed(case, contender, MODES, error, machine)
        return
    entrants: list[_Entrant] = []
    for contender in contenders:
        yield Begins(contender)
        for made in _entrants(case, contender, machine):
            if isinstance(made, _Entrant):
                entrants.append(made)
            else:
                yield made
    yield from _time(case, entrants, truth, machine)
    if case.settings.consumption:
        yield from _energies(case, entrants, machine, case.settings.consumption)
    machine.release()


def _model(network: Network, seed: int, device: torch.device) -> torch.nn.Module:
    return network.model(seed).to(device)


def _images(network: Network, batch: int, seed: int, device: torch.device) -> torch.Tensor:
    return network.input(batch, seed).to(device)


def _failed(
    case: Case, contender: str, modes: Sequence[str], error: Exception, machine: Machine
) -> Iterator[Note | NetworkTime]:
    """A note and rows of status "error", or Lacks without modes; raises GpuLost where the error broke the context."""
    machine.after_error(f"{contender} on {case.label}", error)
    words = f"{type(error).__name__}: {first_line(error)}"
    yield (Note if modes else Lacks)(f"{case.label}: {contender} failed: {words}")
    for mode in modes:
        yield case.row(contender, mode, ERROR, detail=words[:DETAIL_LENGTH])


def _entrants(case: Case, contender: str, machine: Machine) -> Iterator[_Entrant | Note | NetworkTime]:
    """A contender in each mode, warm; a row of status "error" where it fails in one."""
    done: list[str] = []
    try:
        machine.release()  # here and below, so that memory which waits for Python's collector is nobody's
        before = machine.allocated()
        forward, detail = case.prepare(contender)
        first_forward_s = 1e-6 * _mean_us(forward, 1, machine)
        for _ in range(WARM_UP_FORWARDS):
            forward()
        machine.release()
        peak = machine.peak(forward) - before
        facts: dict[str, object] = {"detail": detail, "peak_memory_bytes": peak, "first_forward_s": first_forward_s}
        for mode, call_of in ((EAGER, lambda: forward), (GRAPH, lambda: machine.capture(forward))):
            call = call_of()
            call()
            yield _Entrant(contender, mode, call, forwards_in(RUN_US, call, machine), facts)
            done.append(mode)
    except Exception as error:
        yield from _failed(case, contender, [mode for mode in MODES if mode not in done], error, machine)


def _mean_us(call: Forward, forwards: int, machine: Machine) -> float:
    """The mean microseconds of wall clock of some forwards in a row, the GPU idle before and after them."""
    machine.synchronize()
    start = time.perf_counter()
    for _ in range(forwards):
        call()
    machine.synchronize()
    return 1e6 * (time.perf_counter() - start) / forwards


def forwards_in(least_us: float, call: Forward, machine: Machine) -> int:
    """The number of forwards in a row that last `least_us` or longer: at least 1, and at most MAX_FORWARDS."""
    single_us = min(_mean_us(call, PROBE_FORWARDS, machine) for _ in range(2))
    return max(1, min(MAX_FORWARDS, ceil(least_us / single_us)))


def _time(case: Case, entrants: list[_Entrant], truth: torch.Tensor, machine: Machine) -> Iterator[Event]:
    """The rows of all entrants: a run of each in every round, then the error of what the timed call computes."""
    order = random.Random(f"{case.settings.seed} {case.label}")
    for round_number in range(case.settings.runs):
        for entrant in order.sample(entrants, len(entrants)):
            yield Begins(entrant.contender)
            try:
                entrant.runs_us.append(_mean_us(entrant.call, entrant.forwards, machine))
                if round_number + 1 == case.settings.runs:
                    yield (row := _verified(case, entrant, relative_error(_computed_again(entrant), truth)))
                    if row.status != OK:
                        entrants.remove(entrant)
            except Exception as error:
                entrants.remove(entrant)
                yield from _failed(case, entrant.contender, [entrant.mode], error, machine)


def _energies(
    case: Case, entrants: Sequence[_Entrant], machine: Machine, consumption: Callable[[Forward, Machine], Consumption]
) -> Iterator[Event]:
    """The energy of an image in each CUDA graph; a contender that fails is left out, with a line."""
    for entrant in entrants:
        if entrant.mode != GRAPH:
            continue
        yield Begins(entrant.contender)
        try:
            taken = consumption(entrant.call, machine)
        except UserError:
            raise
        except Exception as error:
            yield from _failed(case, entrant.contender, (), error, machine)
            continue
        yield NetworkEnergy(
            case.network.name, case.network.source, case.batch, entrant.contender, case.settings.precision,
            taken.forwards, taken.seconds, taken.millijoules / (taken.forwards * case.batch),
            1e-3 * taken.millijoules / taken.seconds,
        )  # fmt: skip


def _verified(case: Case, entrant: _Entrant, error: float) -> NetworkTime:
    facts = {**entrant.facts, "rel_l2_error": error}
    if isfinite(error) and error <= TOLERANCE:
        return case.row(entrant.contender, entrant.mode, OK, runs_us=tuple(entrant.runs_us), **facts)
    reason = f"relative L2 error {error:.3g}, more than {TOLERANCE:g}"
    return case.row(entrant.contender, entrant.mode, ERROR, **(facts | {"detail": reason}))


def _computed_again(entrant: _Entrant) -> torch.Tensor:
    """The output of one more forward; a graph's output is overwritten before, so that an old one cannot pass."""
    if entrant.mode == GRAPH:
        entrant.call().fill_(torch.nan)
    return entrant.call()


def relative_error(output: torch.Tensor, truth: torch.Tensor) -> float:
    """||output - truth|| / ||truth|| in float64, NaN where an output is not finite or the shapes differ."""
    if output.shape != truth.shape:
        return float("nan")
    difference = torch.linalg.vector_norm(output.double() - truth) / torch.linalg.vector_norm(truth)
    return float(difference)


Profile = Callable[[Forward, int], list[tuple[str, float]]]


@torch.no_grad()
def break_down(case: Case, machine: Machine, profile: Profile, broken: Collection[Begins] = ()) -> Iterator[Event]:
    """The kernels by kind of each contender in a CUDA graph; one that fails, or is in `broken`, is left out.

    profile: returns the kernels of a number of forwards, as (name, microseconds) of each launch. Raises UsageError
    where it records none.
    """
    torch.compiler.reset()
    for contender in case.settings.contenders:
        if (begins := Begins(contender)) in broken:
            continue
        yield begins
        try:
            machine.release()
            forward, _ = case.prepare(contender)
            for _ in range(WARM_UP_FORWARDS):
                forward()
            launches = profile(machine.capture(forward), PROFILED_FORWARDS)
        except Exception as error:
            yield from _failed(case, contender, (), error, machine)
            continue
        if not launches:
            raise UsageError("--breakdown: no kernel was recorded: check that this user may profile the GPU (CUPTI)")
        row = partial(KernelsOfKind, case.network.label, case.batch, contender, case.settings.precision)
        for kind, us in by_kind(launches).items():
            yield row(kind, len(us) / PROFILED_FORWARDS, sum(us) / PROFILED_FORWARDS)
