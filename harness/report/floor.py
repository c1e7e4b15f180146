"""The floor of a case on tensor cores, in each precision, and the share of it that calls reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from harness.experiments.copies import rows as bandwidth
from harness.precision import FP32
from harness.store.markdown import NONE, Column
from harness.store.times import HOT
from harness.sweep.comparisons import Results, each, geometric_mean, problem_of

FLOP_PER_S = {"nvidia-h100-80gb-hbm3": 790e12, "nvidia-h200": 790e12}
PRODUCTS = {FP32: 3}  # in FP16, for one product
LAUNCH_US = 1.0


def floor_us(flop: Sequence[int], copy_us: np.ndarray, flop_per_s: float) -> np.ndarray:
    """The floor of each case in microseconds: the largest of FLOP / flop_per_s, a copy of its bytes, and LAUNCH_US.

    copy_us: the hot times of copies of as many bytes as a case moves; NaN, where no such copy was measured, is left
    out. The floor is a yardstick and no bound, for the reasons of `above`.

    FLOP_PER_S has the rate of FP16 and BF16 products with FP32 sums that an SXM GPU of the Hopper generation holds in
    bursts: 777 to 785 TFLOP/s were measured of wgmma alone, and up to 793 of cuDNN's heaviest convolutions. That of
    TF32 is the same, since scaled FP16 has its 11 bits; TF32 products have half of it. That of FP32 is a third, since
    FP32 accuracy on tensor cores takes three FP16 products for each of FP32. LAUNCH_US lies between an empty kernel in
    a CUDA graph (0.74 to 0.82 us) and a copy of 1 MiB (1.06 us).
    """
    of_products = 1e6 * np.asarray(flop, dtype=float) / flop_per_s
    return np.fmax(np.maximum(of_products, LAUNCH_US), copy_us)


def _flop_per_s(device: str, precision: str) -> float | None:
    """The rate of products of a device in a precision, None where it has none in FLOP_PER_S."""
    rate = FLOP_PER_S.get(device)
    return rate / PRODUCTS.get(precision, 1) if rate else None


def meaning(device: str, precision: str) -> str:
    """The clause that tells what the floor of a case is, for a device of FLOP_PER_S."""
    tera_flop = (_flop_per_s(device, precision) or 0.0) / 1e12
    third = " (a third of FP16's rate, since each product takes three in FP16)" if precision == FP32 else ""
    return (
        f"the floor of a case is the largest of FLOP / {tera_flop:.0f} TFLOP/s{third}, the time of a copy of as many "
        f"bytes, and {LAUNCH_US:g} us"
    )


def explained(device: str, precision: str) -> str:
    """The sentence that tells what `columns` shows for a device of FLOP_PER_S."""
    return f"The last columns are geometric means of floor over time; {meaning(device, precision)}."


def above(precision: str) -> str:
    """The sentence that tells how a share can be above 100%."""
    winograd = "Winograd multiplies less, " if precision == FP32 else ""
    return (
        f"A share above 100% is possible, since {winograd}reading is faster than copying as many bytes, and rates and "
        "launches vary."
    )


def of_rows(results: Results, rows: pd.DataFrame, precision: str) -> pd.Series | None:
    """The floor in microseconds of each of `rows`, which `compare` returned.

    None where the device has no rate in FLOP_PER_S or no bandwidth.csv, or where the times are not hot, as the copies
    are. Raises ResultsError where that file is something else.
    """
    rate, copies = _flop_per_s(results.device, precision), bandwidth.find(results.folder.parent)
    if rate is None or copies is None or results.time != HOT:
        return None
    problems = [replace(problem_of(case), precision=precision) for case in each(rows)]
    copy_us = bandwidth.copy_us(copies, [problem.min_bytes for problem in problems])
    return pd.Series(floor_us([problem.flop for problem in problems], copy_us, rate), rows.index)


def percent(share: float) -> str:
    """A share in percent without decimals; a dash where it is NaN."""
    return NONE if np.isnan(share) else f"{share:.0%}"


def columns(results: Results, rows: pd.DataFrame, precision: str) -> list[Column]:
    """Two columns of a table of `rows`, which `compare` returned: the floor over ours, and over the fastest rival.

    A cell is the geometric mean in percent, over the cases that both have a time of. There are no columns where
    `of_rows` has no floors, and it raises the same error.
    """
    floors = of_rows(results, rows, precision)
    if floors is None:
        return []

    def reached(column: str, group: pd.DataFrame) -> str:
        both = group.dropna(subset="speedup")
        return percent(geometric_mean(floors[both.index] / both[column]))

    return [("floor / ours", partial(reached, "mean_us")), ("floor / cuDNN", partial(reached, "rival_us"))]
