"""Whole networks: the time of a forward of every contender, its error, memory and energy, and its kernels by kind.

The contenders of one network and batch are prepared one after the other. Then each does a run in each round, in an
order that a seed shuffles anew for every round. So a GPU whose clock changes slows all of them alike.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil, isfinite
from typing import Protocol

import torch

from harness import progress
from harness.errors import UserError
from harness.experiments.networks.contenders import Forward, Prepare
from harness.experiments.networks.kinds import by_kind
from harness.experiments.networks.models import Network, reference
from harness.experiments.networks.rows import EAGER, ERROR, GRAPH, MODES, OK, KernelsOfKind, NetworkEnergy, NetworkTime
from harness.precision import FP16
from harness.stopwatch.gpu import check_alive, first_line, out_of_memory
from harness.store.times import RUNS

RUN_US = 50_000.0  # the least duration of a run
MAX_FORWARDS = 2_000  # the most in a run
WARM_UP_FORWARDS, PROBE_FORWARDS, PROFILED_FORWARDS = 3, 3, 5
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
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            forward()
            # Relaxed: a library may allocate while it is captured.
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                output = forward()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

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
    """The choices of a command: contenders by name, the precision, the seed, and the environment of its rows.

    consumption: measures what a CUDA graph takes, for rows of energy; None for none.
    """

    contenders: Mapping[str, Prepare]
    precision: str
    seed: int = 0
    environment: str = ""
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
class _Case:
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
            status, environment=self.settings.environment, **measured,  # type: ignore[arg-type]
        )  # fmt: skip

    def prepare(self, contender: str) -> tuple[Forward, str]:
        """A contender's forward on a model of its own, in the precision asked for, and its detail; it has not run."""
        precision, model, images = self.settings.precision, deepcopy(self.model()), self.images()
        if precision == FP16:
            model, images = model.half(), images.half()
        prepared = self.settings.contenders[contender](model, images, precision)
        return prepared.forward, prepared.detail


@torch.no_grad()
def measure(networks: Sequence[Network], batches: Sequence[int], machine: Machine, settings: Settings
            ) -> Iterator[NetworkTime | NetworkEnergy]:  # fmt: skip
    """A row for each network, batch, contender and mode, all those of one network and batch together.

    Where the settings have a `consumption`, a row of energy follows for each contender that has a CUDA graph.
    """
    for case in _cases(networks, batches, machine, settings):
        yield from _measure_case(case, machine)


def _measure_case(case: _Case, machine: Machine) -> Iterator[NetworkTime | NetworkEnergy]:
    try:
        truth = reference(case.model(), case.images())
        if not bool(truth.isfinite().all()):
            raise ArithmeticError("the logits in float64 are not finite")
    except Exception as error:
        for contender in case.settings.contenders:
            yield from _failed(case, contender, MODES, error, machine)
        return
    entrants: list[_Entrant] = []
    for contender in case.settings.contenders:
        for made in _entrants(case, contender, machine):
            if isinstance(made, _Entrant):
                entrants.append(made)
            else:
                yield made
    yield from _time(case, entrants, truth, machine)
    if case.settings.consumption:
        yield from _energies(case, entrants, machine, case.settings.consumption)


def _cases(
    networks: Sequence[Network], batches: Sequence[int], machine: Machine, settings: Settings
) -> Iterator[_Case]:
    seed, device = settings.seed, machine.device
    with progress.counted(range(len(networks) * len(batches))) as bar:
        for network in networks:
            model = cache(partial(_model, network, seed, device))
            for batch in batches:
                bar.set_description_str(f"{network.label}, batch {batch}")
                # Without this torch would compile for all batches at once, and give up after some networks. It drops
                # all that is compiled, so no contender of a case may do it.
                torch.compiler.reset()
                yield _Case(network, batch, settings, model, cache(partial(_images, network, batch, seed, device)))
                machine.release()
                bar.update()


def _model(network: Network, seed: int, device: torch.device) -> torch.nn.Module:
    return network.model(seed).to(device)


def _images(network: Network, batch: int, seed: int, device: torch.device) -> torch.Tensor:
    return network.input(batch, seed).to(device)


def _failed(
    case: _Case, contender: str, modes: Sequence[str], error: Exception, machine: Machine
) -> Iterator[NetworkTime]:
    """Rows of status "error"; raises GpuLost where the error broke the CUDA context."""
    detail = _say_failed(case, contender, error, machine)
    for mode in modes:
        yield case.row(contender, mode, ERROR, detail=detail)


def _say_failed(case: _Case, contender: str, error: Exception, machine: Machine) -> str:
    """Free memory after an error, and return it in words, which are printed too."""
    machine.after_error(f"{contender} on {case.label}", error)
    words = f"{type(error).__name__}: {first_line(error)}"
    progress.say(f"{case.label}: {contender} failed: {words}")
    return words


def _entrants(case: _Case, contender: str, machine: Machine) -> Iterator[_Entrant | NetworkTime]:
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
    """The number of forwards in a row that last so many microseconds: at least 1, and at most MAX_FORWARDS."""
    single_us = min(_mean_us(call, PROBE_FORWARDS, machine) for _ in range(2))
    return max(1, min(MAX_FORWARDS, ceil(least_us / single_us)))


def _time(case: _Case, entrants: list[_Entrant], truth: torch.Tensor, machine: Machine) -> Iterator[NetworkTime]:
    """The rows of all entrants: a run of each in every round, then the error of what the timed call computes."""
    order = random.Random(f"{case.settings.seed} {case.label}")
    for round_number in range(case.settings.runs):
        for entrant in order.sample(entrants, len(entrants)):
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
    case: _Case, entrants: Sequence[_Entrant], machine: Machine, consumption: Callable[[Forward, Machine], Consumption]
) -> Iterator[NetworkEnergy]:
    """The energy of an image in each CUDA graph; a contender that fails is left out, with a line."""
    for entrant in entrants:
        if entrant.mode != GRAPH:
            continue
        try:
            taken = consumption(entrant.call, machine)
        except UserError:
            raise
        except Exception as error:
            _say_failed(case, entrant.contender, error, machine)
            continue
        yield NetworkEnergy(
            case.network.name, case.network.source, case.batch, entrant.contender, case.settings.precision,
            taken.forwards, taken.seconds, taken.millijoules / (taken.forwards * case.batch),
            1e-3 * taken.millijoules / taken.seconds, case.settings.environment,
        )  # fmt: skip


def _verified(case: _Case, entrant: _Entrant, error: float) -> NetworkTime:
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
def break_down(
    networks: Sequence[Network], batches: Sequence[int], machine: Machine, settings: Settings, profile: Profile
) -> Iterator[list[KernelsOfKind]]:
    """The kernels by kind of each network, batch and contender; a contender that fails is left out, with a line.

    profile: returns the kernels of so many forwards, as (name, device microseconds) of each launch.
    """
    for case in _cases(networks, batches, machine, settings):
        for contender in settings.contenders:
            try:
                machine.release()
                forward, _ = case.prepare(contender)
                for _ in range(WARM_UP_FORWARDS):
                    forward()
                launches = profile(forward, PROFILED_FORWARDS)
            except Exception as error:
                _say_failed(case, contender, error, machine)
                continue
            row = partial(KernelsOfKind, case.network.label, case.batch, contender, settings.precision)
            yield [
                row(kind, len(us) / PROFILED_FORWARDS, sum(us) / PROFILED_FORWARDS)
                for kind, us in by_kind(launches).items()
            ]
