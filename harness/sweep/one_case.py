"""A case of a sweep: for every contender prepare a call, verify it, time it, verify it again, and make a row of it.

It runs in a process of its own (`harness.isolation`), which a call may break, and `harness.sweep.supervisor` starts
another one then.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import nvtx
import torch

from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from harness.cases.catalogue import Case
from harness.contenders import base
from harness.contenders.base import LAYOUTS, PLAIN, Contender, NoMemory, NotRunnable, Offer, Operands, Prepared
from harness.contenders.registry import PROVIDERS, comparison, shown
from harness.isolation import Begins, Note
from harness.precision import FP32, of_process
from harness.stopwatch import between, timing
from harness.stopwatch.clocks import CaseClocks, Steadily, sensors_of
from harness.stopwatch.gpu import available_bytes, check_alive, first_line, out_of_memory
from harness.stopwatch.verify import CHECKED_IMAGES, TOLERANCE, Errors, Verifier
from harness.store.times import COLD, SEPARATED
from harness.sweep import second_pass, ways
from harness.sweep.records import CASE_COLUMNS, EXCEEDED, OK, Measurement
from harness.sweep.rivals import takes_part
from harness.sweep.turns import Turns


@dataclass(frozen=True, slots=True)
class Options:
    """The choices for a sweep: device, providers and algorithms (None: all), runs of each, seed of the data.

    workspace_limit, in bytes, is that of the rows that are compared. environment is the identifier that each row
    carries. device_slug names the device's folder under results/, such as "nvidia-h200" or "cpu". precision is that of
    the whole sweep. epilogue: what follows each convolution in the same call (`harness.cases.config_files.Settings`).
    other_times: whether separated and cold times are measured in addition to the hot ones.
    """

    device: torch.device
    providers: tuple[str, ...]
    algorithms: frozenset[str] | None
    runs: int
    seed: int
    workspace_limit: int
    environment: str
    device_slug: str = ""
    precision: str = FP32
    epilogue: str = ""
    other_times: bool = False

    def over(self, needed: int) -> str:
        """Why a workspace of `needed` bytes is over the limit; empty where it is within it."""
        return base.exceeded(needed, self.workspace_limit) if needed > self.workspace_limit else ""


Algorithm = tuple[str, str]
"""A provider and the name of its algorithm; with an empty name a provider that is asked for all of its algorithms."""


@dataclass(frozen=True, slots=True)
class Task:
    """A case to measure, without the algorithms in `done`, which have a row already.

    rivals: those that take part; None stands for all. broken: why an algorithm is not tried again, after
    it ended the process that measured it.
    """

    case: Case
    done: frozenset[Algorithm] = frozenset()
    rivals: frozenset[Algorithm] | None = None
    broken: Mapping[Algorithm, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offered:
    """The number of algorithms that a case measures, for the progress bar."""

    count: int


Event = Begins | Offered | Note | Measurement


def measure_case(
    task: Task, entered: Mapping[str, Contender], options: Options, turns: Turns | None = None
) -> Iterator[Event]:
    """A row for each algorithm of each contender that has none yet, in an order shuffled by the seed.

    Rows of the second pass follow, which replace earlier ones. Before each row comes what begins. turns: those on the
    GPU, where other processes measure on it too. Raises GpuLost where a call broke the CUDA context.
    """
    for provider in _offering(task, entered, options):
        yield Begins(provider)
        with suppress(Exception):  # `offers` fails in the same way, and its error is told
            entered[provider].get_ready(_problem(task.case))
    turns = turns or Turns()
    yield Begins()
    for _ in turns.take():
        yield Begins()
    try:
        yield from _measured(task, entered, options)
        _release_memory()  # the tensors of the case are gone, and the next turn may be another process's
    finally:
        turns.end()


def _measured(task: Task, entered: Mapping[str, Contender], options: Options) -> Iterator[Event]:
    """The rows of a case, with what begins before each."""
    try:
        case = CaseUnderTest(task.case, options)
    except Exception as error:
        _after_error(f"making the tensors of {task.case.label}", error, options.device)
        detail = f"the case's tensors cannot be made: {first_line(error)}"
        yield from rows_without_times(Begins(), task, options, "error", detail)
        return
    for provider in entered:
        if (provider, "") in task.broken:
            yield from rows_without_times(Begins(provider), task, options, "error", task.broken[provider, ""])
    offers: list[Offer] = []
    for provider in _offering(task, entered, options):
        yield Begins(provider)
        try:
            offers += entered[provider].offers(case.problem, case.operands)
        except Exception as error:
            _after_error(f"{provider} on {task.case.label}", error, options.device)
            yield from rows_without_times(Begins(provider), task, options, "error", said_of(error))
    offers = [offer for offer in offers if _wanted(task, offer.provider, offer.algorithm, options)]
    random.Random(case.seed).shuffle(offers)
    yield Offered(len(offers))
    with nvtx.annotate(task.case.label):
        yield from _both_passes(task, case, offers, options)


def _offering(task: Task, entered: Mapping[str, Contender], options: Options) -> list[str]:
    """The providers that are asked for their algorithms: those that take part, and did not end a process there."""
    return [name for name in entered if (name, "") not in task.broken and _may_offer(task, name, options)]


def _problem(case: Case) -> ConvProblem:
    """The problem of a case in the precision of this process."""
    return replace(case.problem, precision=of_process())


def _both_passes(task: Task, case: CaseUnderTest, offers: list[Offer], options: Options) -> Iterator[Event]:
    """The hot times of all offers; then what is measured again, or completed, once these are known."""
    measured: second_pass.Measured = []
    for offer in offers:
        begins = Begins(offer.provider, offer.algorithm)
        if (offer.provider, offer.algorithm) in task.broken:
            detail = task.broken[offer.provider, offer.algorithm]
            yield from rows_without_times(begins, task, options, "error", detail)
            continue
        yield begins
        with nvtx.annotate(f"{offer.provider} {offer.algorithm}"):
            offer = case.settled(offer)
            row = case.measure(offer, case.clocks.steadily)
        measured.append((offer, row))
        yield row
    steps = second_pass.low_clocks_again(measured, case.clocks, case.measure)
    if options.other_times:
        steps = chain(steps, second_pass.other_times(measured, options.device_slug, case.complete))
    for offer, measure in steps:
        yield Begins(offer.provider, offer.algorithm)
        with nvtx.annotate(f"{offer.provider} {offer.algorithm}, second pass"):
            row = measure()
        yield from map(Note, case.notes)
        case.notes.clear()
        yield row


class CaseUnderTest:
    """A case with its `operands`, the `verifier` of outputs, and the `clocks` of all of its rows.

    notes: sentences for the user about times that there are not.
    """

    def __init__(self, case: Case, options: Options):
        """Raises MemoryError where the device has no room for the tensors."""
        _check_room(case, options)
        self._case, self._options = case, options
        self.problem = _problem(case)
        self.seed = zlib.crc32(f"{options.seed} {case.label}".encode())
        generator = torch.Generator(options.device).manual_seed(self.seed)
        self.operands = own = Operands.random(self.problem, generator, options.epilogue)
        self.verifier = Verifier(case.problem, own.input, own.weight, generator, own.bias, own.residual)
        self.clocks = CaseClocks(sensors_of(options.device))
        self.notes: list[str] = []

    def settled(self, offer: Offer) -> Offer:
        """The offer with the way in which it is measured, where it has several."""
        what, options = f"{offer.provider} {offer.algorithm} on {self._case.label}", self._options
        after_error = partial(_after_error, what, device=options.device)
        return ways.settled(offer, options.workspace_limit, options.device, self._is_right, after_error)

    def _is_right(self, prepared: Prepared) -> bool:
        return self._errors_when_called(prepared).acceptable

    def _errors_when_called(self, prepared: Prepared) -> Errors:
        prepared.call().fill_(torch.nan)  # what another algorithm wrote there must not pass for its output
        return self.verifier.errors(prepared.call())

    def measure(self, offer: Offer, steadily: Steadily) -> Measurement:
        """The row of an offer's hot times, or of what prevents them; steadily: repeats runs that are no fair sample."""
        row = self._measure(offer, steadily)
        if row.status == EXCEEDED:  # what it held is freed for others: torch chooses by the memory that is left
            _release_memory()
        return row

    def _measure(self, offer: Offer, steadily: Steadily) -> Measurement:
        needed = 0

        def row(status: str, detail: str, **measured: Any) -> Measurement:
            named = offer.provider, offer.algorithm, offer.precision
            return _row(self._case, *named, status, detail, self._options, **measured)

        try:
            prepared = offer.prepare()
            needed = prepared.workspace_bytes
            self._check_room_for(needed)
            return self._verify_and_time(prepared, row, steadily)
        except NoMemory as reason:
            needed, detail = reason.needed, str(reason)
        except NotRunnable as reason:
            return row(reason.status, str(reason))
        except UnsupportedProblem as reason:
            return row("unsupported", str(reason))
        except timing.TooSlow as reason:
            return row("timeout", str(reason))
        except Exception as error:
            _after_error(f"{offer.provider} {offer.algorithm} on {self._case.label}", error, self._options.device)
            detail = said_of(error)
            if not out_of_memory(error):
                return row("error", detail)
        why = self._options.over(needed)  # the memory does not suffice
        return row(EXCEEDED if why else "error", why or detail)

    def _check_room_for(self, needed: int) -> None:
        """Raise NoMemory for a workspace over the limit that a host may lack: the system might end the process.

        torch's temporary copies may double the workspace. A GPU refuses what it has no room for.
        """
        if self._options.device.type == "cpu" and self._options.over(needed):
            free = available_bytes(self._options.device)
            if free is not None and 2 * needed > free:
                raise NoMemory(needed)

    def _verify_and_time(self, prepared: Prepared, row: Callable[..., Measurement], steadily: Steadily) -> Measurement:
        before = self._errors_when_called(prepared)
        facts: dict[str, Any] = {
            "workspace_bytes": prepared.workspace_bytes,
            "rel_l2_error": before.rel_l2,
            "max_abs_error": before.max_abs,
        }
        if not before.acceptable:
            return row("incorrect", _why_incorrect(before), **facts)

        timed = timing.measure(prepared.call, self._options.runs, self._options.device, steadily)
        after = self.errors_of(timed)
        if not after.acceptable:
            return row("incorrect", f"after timing: {_why_incorrect(after)}", **facts)
        facts |= {"timing": timed.mode, "calls_per_run": timed.calls_per_run, "remeasured": timed.remeasured}
        why = self._options.over(prepared.workspace_bytes)
        status, detail = (EXCEEDED, why) if why else (OK, prepared.detail)
        return row(status, detail, runs_us=timed.runs_us, **facts, **asdict(timed.reading))

    def complete(self, offer: Offer, row: Measurement) -> Measurement:
        """A row with its separated and cold times.

        A time that an error prevents is left out. The row is "incorrect" where an output is wrong.
        """
        what = f"{shown(offer.provider, offer.algorithm)} on {self._case.label}"
        try:
            call = offer.prepare().call
            for time in (SEPARATED, COLD):
                row = self._with_time(time, call, row, what)
                if row.status != OK:
                    break
        except Exception as error:
            _after_error(what, error, self._options.device)
            self.notes.append(f"{what} has no separated or no cold time: {said_of(error)}")
        return row

    def _with_time(self, time: str, call: Callable[[], torch.Tensor], row: Measurement, what: str) -> Measurement:
        """The row with the runs of one time, after its output is verified."""
        count = min(row.calls_per_run or 1, between.MAX_CALLS[time])
        work = between.work(time, self._options.device)
        timed = between.measure(call, work, count, self._options.runs, self.clocks.steadily)
        errors = self.errors_of(timed)
        if not errors.acceptable:
            detail = f"in its {time} calls: relative L2 error {errors.rel_l2:.3g}"
            return replace(row, status="incorrect", detail=detail, runs_us=(), separated_runs_us=(), cold_runs_us=())
        if min(timed.runs_us) <= 0:
            self.notes.append(f"{what} has no {time} time: it is lost in the scatter of the work between its calls")
            return row
        repeats = None if row.remeasured is None else row.remeasured + (timed.remeasured or 0)
        if time == SEPARATED:
            return replace(row, remeasured=repeats, separated_runs_us=timed.runs_us)
        return replace(row, remeasured=repeats, cold_runs_us=timed.runs_us)

    def errors_of(self, timed: timing.Timing) -> Errors:
        """The errors of what the timed calls write now."""
        timed.output.fill_(torch.nan)
        return self.verifier.errors(timed.again())


def said_of(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {first_line(error)}"


def _why_incorrect(errors: Errors) -> str:
    return f"relative L2 error {errors.rel_l2:.3g}, more than {TOLERANCE:g}"


def _row(
    case: Case,
    provider: str,
    algorithm: str,
    precision: str,
    status: str,
    detail: str,
    options: Options,
    **measured: Any,
) -> Measurement:
    sizes: dict[str, Any] = dict(zip(CASE_COLUMNS, case.key, strict=True))
    return Measurement(
        networks=case.networks_cell, layers=case.layers_cell, **sizes,
        provider=provider, algorithm=algorithm, precision=precision, status=status, detail=detail,
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"), environment=options.environment, **measured,
    )  # fmt: skip


def _wanted(task: Task, provider: str, algorithm: str, options: Options) -> bool:
    if options.algorithms is not None and algorithm not in options.algorithms:
        return False
    if (provider, algorithm) in task.done:
        return False
    return task.rivals is None or takes_part(task.rivals, provider, algorithm, options.device_slug)


def _may_offer(task: Task, provider: str, options: Options) -> bool:
    """False where no algorithm of a provider takes part: listing a provider's engines costs a tenth of a second."""
    ours = comparison(options.device_slug).provider
    if task.rivals is None or provider == ours or PROVIDERS[provider].optional:
        return True
    return any(chosen == provider for chosen, _ in task.rivals)


def rows_without_times(begun: Begins, task: Task, options: Options, status: str, detail: str) -> Iterator[Measurement]:
    """A row for each algorithm that could not be measured, because what had begun failed.

    Of a provider that did not come to say which algorithms it offers they are those in the registry.
    """
    for provider in [begun.provider] if begun.provider else options.providers:
        for algorithm in (
            [begun.algorithm] if begun.algorithm else PROVIDERS[provider].algorithms_in(options.precision) or ("any",)
        ):
            if _wanted(task, provider, algorithm, options):
                yield _row(task.case, provider, algorithm, options.precision, status, detail, options)


def _check_room(case: Case, options: Options) -> None:
    """Raise MemoryError for tensors that the device has no room for; the system may end a process that makes them."""
    p = case.problem
    outputs = 2 if options.epilogue == "bias_add_relu" else 1
    images, weights = prod(p.input_shape) + outputs * prod(p.output_shape), prod(p.weight_shape)
    in_float64 = 1.0 if options.epilogue else min(1.0, (CHECKED_IMAGES + 1) / p.n)  # images, and a mixture of all
    # The engines hold a copy in each layout, and torch's call holds one more.
    copies = [layout.dtype.itemsize for layout in LAYOUTS[options.precision] if layout != PLAIN]
    of_element = FLOAT_BYTES + sum(copies) + max(copies, default=0)
    needed = of_element * (images + weights) + 2 * FLOAT_BYTES * (images * in_float64 + weights)
    free = available_bytes(options.device)
    if free is not None and needed > free:
        raise MemoryError(f"they take {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB are free")


def _release_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _after_error(what: str, error: Exception, device: torch.device) -> None:
    """Free memory, and raise GpuLost where the error broke the CUDA context."""
    if device.type != "cuda":
        return
    if out_of_memory(error):
        _release_memory()
    check_alive(what, error)
