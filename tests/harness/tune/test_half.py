"""The cost models in half precision against times that were measured on a GPU."""

from pathlib import Path

from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200
from harness.sweep.comparisons import CASE
from harness.tune import candidates, fit

MEASURED = Path("results/nvidia-h200/tune-fp16/candidates.csv.gz")
EVERY = 6  # cases that are looked at: one of so many


def rows_where(kept) -> list[fit.Row]:
    frame = candidates.read(MEASURED)
    numbers = frame.groupby(CASE, sort=False).ngroup()
    return fit.rows_of(frame[kept(frame, numbers)], H200, "fp16")[0]


def regret(rows: list[fit.Row]) -> float:
    costs = {name: ALGORITHMS[name].costs("fp16") for name in {row.algorithm for row in rows}}
    return fit.regret(rows, H200, costs).geometric


def test_the_choice_among_measured_configurations_is_near_the_best():
    assert regret(rows_where(lambda frame, numbers: numbers % EVERY == 0)) < 1.05


def test_the_choice_is_near_the_best_where_boxes_reach_behind_the_last_channel():
    assert regret(rows_where(lambda frame, numbers: (frame.c < 64) & (frame.k > 1))) < 1.06
