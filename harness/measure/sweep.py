"""The sweep: for every case and contender prepare a call, verify it, time it, verify it again, and record a row."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import prod
from typing import Any

import nvtx
import torch

from cuconv.problem import FLOAT_BYTES, UnsupportedProblem
from harness import contenders, progress
from harness.catalogue import Case, Sweep
from harness.contenders import Contender, NotRunnable, Offer, Operands, Prepared
from harness.measure import second_pass, timing
from harness.measure.clocks import CaseClocks, Steadily, sensors_of
from harness.measure.gpu import available_bytes, check_alive, first_line, out_of_memory
from harness.measure.verify import CHECKED_IMAGES, TOLERANCE, Errors, Verifier
from harness.precision import FP32
from harness.registry import PROVIDERS, comparison
from harness.results.records import Measurement, ResultsFolder
from harness.results.rivals import Entrants, takes_part

# The expected time of a case, for the progress bar: a part that every case takes, and arithmetic.
CASE_MS = 300
CASE_FLOP_PER_MS = 5e7


@dataclass(frozen=True, slots=True)
class Options:
    """The choices for a sweep: device, providers and algorithms (None: all), runs of each, seed of the data.

    workspace_limit is in bytes. environment is the identifier that each row carries. done has the keys of rows that
    are there already and stay. entrants, where given, has for each case the rivals that take part beside ours.
    device_slug names the device's folder under results/, such as "nvidia-h200" or "cpu"; it says which algorithms are
    ours, and is needed with entrants and other_times alone. precision is that of the whole sweep. other_times: whether
    separated and cold times are measured, beside the hot ones.
    """

    device: torch.device
    providers: tuple[str, ...]
    algorithms: frozenset[str] | None
    runs: int
    seed: int
    workspace_limit: int
    environment: str
    done: frozenset[tuple[str, ...]] = field(default=frozenset())
    entrants: Entrants | None = None
    device_slug: str = ""
    precision: str = FP32
    other_times: bool = False


def run(sweep: Sweep, options: Options, folder: ResultsFolder) -> None:
    """Measure every case of the sweep, appending rows to the open folder as they are measured."""
    torch.set_grad_enabled(False)
    entered = load_contenders(options.providers, options.precision)
    for contender in entered.values():
        contender.begin([case.problem for case in sweep.cases], options.algorithms)
    expected = [_expected_ms(case) for case in sweep.cases]
    with progress.weighed(sum(expected)) as bar:
        for number, (case, weight) in enumerate(zip(sweep.cases, expected, strict=True), 1):
            bar.set_description_str(f"case {number}/{len(sweep.cases)} {case.label}")
            measured, end = CaseInProgress(), bar.n + weight
            for row in measure_case(case, entered, options, measured):
                folder.append(row)
                if measured.offers:
                    bar.update(min(weight / measured.offers, end - bar.n))
            bar.update(end - bar.n)


def load_contenders(providers: Iterable[str], precision: str) -> dict[str, Contender]:
    """The contenders that this machine can load by provider; says once which it cannot, and why."""
    entered = {}
    for provider in providers:
        try:
            entered[provider] = contenders.load(provider, precision)
        except contenders.Unavailable as reason:
            progress.say(f"{provider} does not take part: {reason}")
    return entered


@dataclass(slots=True)
class CaseInProgress:
    """The number of algorithms that a case measures, 0 until it is known: the progress bar moves with each."""

    offers: int = 0


def measure_case(
    case: Case, entered: Mapping[str, Contender], options: Options, progressing: CaseInProgress | None = None
) -> Iterator[Measurement]:
    """A row for each algorithm of each contender that has none yet, in an order shuffled by the seed."""
    seed = zlib.crc32(f"{options.seed} {case.label}".encode())
    try:
        _check_room(case, options.device)
        generator = torch.Generator(options.device).manual_seed(seed)
        operands = Operands.random(case.problem, generator)
        verifier = Verifier(case.problem, operands, generator)
    except Exception as error:
        _after_error(f"making the tensors of {case.label}", error, options.device)
        detail = f"the case's tensors cannot be made: {first_line(error)}"
        for provider in entered:
            yield from _rows_without_offers(case, provider, options, detail)
        return

    offers: list[Offer] = []
    for provider, contender in entered.items():
        if not _may_offer(case, provider, options):
            continue
        try:
            offers += contender.offers(case.problem, operands, options.workspace_limit)
        except Exception as error:
            _after_error(f"{provider} on {case.label}", error, options.device)
            yield from _rows_without_offers(case, provider, options, f"{type(error).__name__}: {first_line(error)}")
    offers = [offer for offer in offers if _wanted(case, offer.provider, offer.algorithm, options)]
    random.Random(seed).shuffle(offers)
    if progressing:
        progressing.offers = len(offers)
    clocks = CaseClocks(sensors_of(options.device))
    measured: second_pass.Measured = []
    with nvtx.annotate(case.label):
        for offer in offers:
            with nvtx.annotate(f"{offer.provider} {offer.algorithm}"):
                row = _measure_offer(case, offer, operands, verifier, options, clocks.steadily)
            measured.append((offer, row))
            yield row
        yield from _second_pass(case, measured, operands, verifier, options, clocks)
    if options.device.type == "cuda" and _reserved_share(options.device) > 0.5:
        torch.cuda.empty_cache()


def _second_pass(
    case: Case,
    measured: second_pass.Measured,
    operands: Operands,
    verifier: Verifier,
    options: Options,
    clocks: CaseClocks,
) -> Iterator[Measurement]:
    """The rows that are measured again, or completed, once all hot times of the case are known."""

    def again(offer: Offer, steadily: Steadily) -> Measurement:
        return _measure_offer(case, offer, operands, verifier, options, steadily)

    def on_error(what: str, error: Exception) -> None:
        _after_error(what, error, options.device)

    yield from second_pass.low_clocks_again(measured, clocks, again)
    if options.other_times:
        others = second_pass.OtherTimes(case.label, options.device, options.runs, verifier, clocks.steadily, on_error)
        yield from second_pass.other_times(measured, options.device_slug, others.complete)


def _measure_offer(
    case: Case, offer: Offer, operands: Operands, verifier: Verifier, options: Options, steadily: Steadily
) -> Measurement:
    def row(status: str, detail: str, **measured: Any) -> Measurement:
        return _row(case, offer.provider, offer.algorithm, offer.precision, status, detail, options, **measured)

    try:
        prepared = offer.prepare()
        return _verify_and_time(prepared, operands, verifier, options, row, steadily)
    except NotRunnable as reason:
        return row(reason.status, str(reason))
    except UnsupportedProblem as reason:
        return row("unsupported", str(reason))
    except timing.TooSlow as reason:
        return row("timeout", str(reason))
    except Exception as error:
        _after_error(f"{offer.provider} {offer.algorithm} on {case.label}", error, options.device)
        return row("error", f"{type(error).__name__}: {first_line(error)}")


def _verify_and_time(
    prepared: Prepared,
    operands: Operands,
    verifier: Verifier,
    options: Options,
    row: Callable[..., Measurement],
    steadily: Steadily,
) -> Measurement:
    operands.output.fill_(torch.nan)
    before = verifier.errors(prepared.call())
    facts: dict[str, Any] = {
        "workspace_bytes": prepared.workspace_bytes,
        "rel_l2_error": before.rel_l2,
        "max_abs_error": before.max_abs,
    }
    if not before.acceptable:
        return row("incorrect", _why_incorrect(before), **facts)

    timed = timing.measure(prepared.call, options.runs, options.device, steadily)
    timed.output.fill_(torch.nan)
    after = verifier.errors(timed.again())
    if not after.acceptable:
        return row("incorrect", f"after timing: {_why_incorrect(after)}", **facts)
    facts |= {"timing": timed.mode, "calls_per_run": timed.calls_per_run, "remeasured": timed.remeasured}
    return row("ok", prepared.detail, runs_us=timed.runs_us, **facts, **asdict(timed.reading))


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
    layer = case.layer
    return Measurement(
        networks=case.networks_cell,
        layers=case.layers_cell,
        batch=case.batch,
        h=layer.h,
        w=layer.w,
        c=layer.c,
        m=layer.m,
        k=layer.k,
        pad=layer.pad,
        stride=layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
        provider=provider,
        algorithm=algorithm,
        precision=precision,
        status=status,
        detail=detail,
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=options.environment,
        **measured,
    )


def row_key(case: Case, provider: str, algorithm: str, precision: str) -> tuple[str, ...]:
    """The key under which ResultsFolder keeps the row of a case, algorithm and precision."""
    return (*map(str, case.key), provider, algorithm, precision)


def _wanted(case: Case, provider: str, algorithm: str, options: Options) -> bool:
    if options.algorithms is not None and algorithm not in options.algorithms:
        return False
    if row_key(case, provider, algorithm, options.precision) in options.done:
        return False
    entrants = options.entrants
    return entrants is None or takes_part(entrants, case.key, provider, algorithm, options.device_slug)


def _may_offer(case: Case, provider: str, options: Options) -> bool:
    """False where no algorithm of a provider takes part: listing a provider's engines costs a tenth of a second."""
    if options.entrants is None or provider == comparison(options.device_slug).provider:
        return True
    return any(chosen == provider for chosen, _ in options.entrants.get(case.key, ()))


def _rows_without_offers(case: Case, provider: str, options: Options, detail: str) -> Iterator[Measurement]:
    """A row for each algorithm in the registry of a provider that could not say which algorithms it offers."""
    for algorithm in PROVIDERS[provider].algorithms or ("any",):
        if _wanted(case, provider, algorithm, options):
            yield _row(case, provider, algorithm, options.precision, "error", detail, options)


def _check_room(case: Case, device: torch.device) -> None:
    """Raise MemoryError for tensors that the device has no room for; the system may end a process that makes them."""
    p = case.problem
    images, weights = prod(p.input_shape) + prod(p.output_shape), prod(p.weight_shape)
    in_float64 = min(1.0, (CHECKED_IMAGES + 1) / p.n)  # of the images: those that are verified, and their mixture
    needed = FLOAT_BYTES * (images + weights) + 2 * FLOAT_BYTES * (images * in_float64 + weights)
    free = available_bytes(device)
    if free is not None and needed > free:
        raise MemoryError(f"they take {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB are free")


def _release_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _reserved_share(device: torch.device) -> float:
    return torch.cuda.memory_reserved(device) / torch.cuda.get_device_properties(device).total_memory


def _after_error(what: str, error: Exception, device: torch.device) -> None:
    """Free memory, and raise GpuLost where the error broke the CUDA context."""
    if device.type != "cuda":
        return
    if out_of_memory(error):
        _release_memory()
    check_alive(what, error)


def _expected_ms(case: Case) -> float:
    return CASE_MS + case.problem.flop / CASE_FLOP_PER_MS
