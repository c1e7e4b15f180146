"""What a case is measured for after the hot times of all its algorithms: low clocks again, separated and cold times.

Both need all hot times of the case: only then its best clock and its fastest rivals are known. Algorithms are prepared
again for it, because the workspaces of all together might not fit in memory. A row that was written before is written
anew; the newer one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from harness.contenders.base import Offer
from harness.contenders.registry import shown
from harness.stopwatch import between
from harness.stopwatch.clocks import LONGEST_US, MOST_REPEATS, CaseClocks, Steadily
from harness.stopwatch.gpu import first_line
from harness.stopwatch.timing import Timing
from harness.stopwatch.verify import Verifier
from harness.store.times import COLD, SEPARATED
from harness.sweep.records import Measurement
from harness.sweep.rivals import qualifying

Measured = list[tuple[Offer, Measurement]]
# An offer, and the function that measures it and returns its row.
Step = tuple[Offer, Callable[[], Measurement]]


def has_other_times(device: torch.device) -> bool:
    """Whether separated and cold times are measured on a device: on a GPU alone.

    A CPU's calls never overlap, and a flush of its caches would take far longer than most calls.
    """
    return device.type == "cuda"


def low_clocks_again(
    measured: Measured, clocks: CaseClocks, measure: Callable[[Offer, Steadily], Measurement]
) -> Iterator[Step]:
    """A step for each row whose clock is low beside the best of the case: it enters and returns the row that counts.

    measure: measures an offer with runs that are repeated as its second argument says.
    """

    def again(at: int) -> Measurement:
        offer, row = measured[at]
        left = MOST_REPEATS - (row.remeasured or 0) - 1
        measured[at] = (offer, _of_higher_clock(row, measure(offer, partial(clocks.steadily, repeats=left))))
        return measured[at][1]

    for at, (offer, row) in enumerate(measured):
        some_left = row.remeasured is not None and row.remeasured < MOST_REPEATS
        if some_left and clocks.is_low(row.sm_clock_mhz) and sum(row.runs_us) <= LONGEST_US:
            yield offer, partial(again, at)


def _of_higher_clock(row: Measurement, again: Measurement) -> Measurement:
    """The one of two measurements that counts: a failure, or else that of the higher clock."""
    if again.status != "ok":
        return again
    counts = again if (again.sm_clock_mhz or 0) > (row.sm_clock_mhz or 0) else row
    return replace(counts, remeasured=(row.remeasured or 0) + 1 + (again.remeasured or 0))


def other_times(
    measured: Measured, device_slug: str, complete: Callable[[Offer, Measurement], Measurement]
) -> Iterator[Step]:
    """A step for each row that qualifies for separated and cold times: it returns the row as `complete` does."""
    chosen = {row.key for row in qualifying([row for _, row in measured], device_slug)}
    for offer, row in measured:
        if row.key in chosen:
            yield offer, partial(complete, offer, row)


@dataclass(frozen=True, slots=True)
class OtherTimes:
    """Completes rows of one case by their separated and cold times.

    label: of the case. steadily: repeats runs at a low clock. on_error: frees memory after an error, and raises GpuLost
    where it broke the CUDA context. say: takes a sentence about a time that there is not.
    """

    label: str
    device: torch.device
    runs: int
    verifier: Verifier
    steadily: Steadily
    on_error: Callable[[str, Exception], None]
    say: Callable[[str], None]

    def complete(self, offer: Offer, row: Measurement) -> Measurement:
        """The row with both times. Without the one that an error prevents, and "incorrect" where an output is wrong."""
        what = f"{shown(offer.provider, offer.algorithm)} on {self.label}"
        try:
            call = offer.prepare().call
            for time in (SEPARATED, COLD):
                count = min(row.calls_per_run or 1, between.MAX_CALLS[time])
                timed = between.measure(call, between.work(time, self.device), count, self.runs, self.steadily)
                row = self._with(time, timed, row, what)
                if row.status != "ok":
                    break
        except Exception as error:
            self.on_error(what, error)
            self.say(f"{what} has no separated or no cold time: {type(error).__name__}: {first_line(error)}")
        return row

    def _with(self, time: str, timed: Timing, row: Measurement, what: str) -> Measurement:
        """The row with the runs of one time, after its output is verified."""
        timed.output.fill_(torch.nan)
        errors = self.verifier.errors(timed.again())
        if not errors.acceptable:
            detail = f"in its {time} calls: relative L2 error {errors.rel_l2:.3g}"
            return replace(row, status="incorrect", detail=detail, runs_us=(), separated_runs_us=(), cold_runs_us=())
        if min(timed.runs_us) <= 0:
            self.say(f"{what} has no {time} time: it is lost in the scatter of the work between its calls")
            return row
        repeats = None if row.remeasured is None else row.remeasured + (timed.remeasured or 0)
        if time == SEPARATED:
            return replace(row, remeasured=repeats, separated_runs_us=timed.runs_us)
        return replace(row, remeasured=repeats, cold_runs_us=timed.runs_us)
