"""The second pass of a case, after the hot times of all its algorithms: low clocks again, separated and cold times.

Both need all hot times of the case: only then its best clock and its fastest rivals are known. Algorithms are prepared
again for it, because the workspaces of all together might not fit in memory. A row that was written before is written
anew; the newer one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from harness.contenders.base import Offer
from harness.stopwatch.clocks import LONGEST_US, MOST_REPEATS, CaseClocks, Steadily
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
    """A step for each row whose clock is low compared with the best of the case: it records and returns the better row.

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
    """The one of two measurements that counts: one without times, or else that of the higher clock."""
    if not again.runs_us:
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
