"""The floor of a case in half precision or TF32, and the share of it that calls reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from harness.experiments.copies import rows as bandwidth
from harness.precision import TF32
from harness.store.markdown import NONE, Column
from harness.store.times import HOT
from harness.sweep.comparisons import Results, each, geometric_mean, problem_of

FLOP_PER_S = {"nvidia-h100-80gb-hbm3": 790e12, "nvidia-h200": 790e12}
LAUNCH_US = 1.0


def floor_us(flop: Sequence[int], copy_us: np.ndarray, flop_per_s: float) -> np.ndarray:
    """The floor of each case in microseconds: the largest of FLOP / flop_per_s, a copy of its bytes, and LAUNCH_US.

    copy_us: the hot times of copies of as many bytes as a case moves; NaN, where no such copy was measured, is left
    out. Every call takes longer than its floor, since it also fills a pipeline.

    FLOP_PER_S has the rate of FP16 and BF16 products with FP32 sums that an SXM GPU of the Hopper generation holds in
    bursts: 777 to 785 TFLOP/s were measured of wgmma alone, and up to 793 of cuDNN's heaviest convolutions. That of
    TF32 is half of it. LAUNCH_US lies between an empty kernel in a CUDA graph (0.74 to 0.82 us) and a copy of 1 MiB
    (1.06 us).
    """
    of_products = 1e6 * np.asarray(flop, dtype=float) / flop_per_s
    return np.fmax(np.maximum(of_products, LAUNCH_US), copy_us)


def _flop_per_s(device: str, precision: str) -> float | None:
    """The rate of products of a device in a precision, None where it has none in FLOP_PER_S."""
    rate = FLOP_PER_S.get(device)
    return rate / 2 if rate and precision == TF32 else rate


def explained(device: str, precision: str) -> str:
    """The sentence that tells what `columns` shows for a device of FLOP_PER_S."""
    tera_flop = (_flop_per_s(device, precision) or 0.0) / 1e12
    return (
        "The last columns are geometric means of floor over time; the floor of a case is the largest of "
        f"FLOP / {tera_flop:.0f} TFLOP/s, the time of a copy of as many bytes, and {LAUNCH_US:g} us."
    )


def columns(results: Results, rows: pd.DataFrame, precision: str) -> list[Column]:
    """Two columns of a table of `rows`, which `compare` returned: the floor over ours, and over the fastest rival.

    A cell is the geometric mean in percent. There are no columns where the device has no rate in FLOP_PER_S or no
    bandwidth.csv, or where the times are not hot, as the copies are. Raises ResultsError where that file is something
    else.
    """
    rate, copies = _flop_per_s(results.device, precision), bandwidth.find(results.folder.parent)
    if rate is None or copies is None or results.time != HOT:
        return []
    problems = [replace(problem_of(case), precision=precision) for case in each(rows)]
    copy_us = bandwidth.copy_us(copies, [problem.min_bytes for problem in problems])
    floors = pd.Series(floor_us([problem.flop for problem in problems], copy_us, rate), rows.index)

    def reached(column: str, group: pd.DataFrame) -> str:
        share = geometric_mean(floors[group.index] / group[column])
        return NONE if np.isnan(share) else f"{share:.0%}"

    return [("floor / ours", partial(reached, "mean_us")), ("floor / cuDNN", partial(reached, "rival_us"))]
