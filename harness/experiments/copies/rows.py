"""bandwidth.csv: one row per size of a copy on the device, with the time of the faster of two ways to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd

from harness.errors import ResultsError
from harness.store.files import stored
from harness.store.table import Table, runs_of
from harness.store.times import HOT


@dataclass(frozen=True, slots=True)
class Copy:
    """The faster way to copy a number of bytes, read and written together, and the microseconds of its runs."""

    bytes: int
    way: str
    runs_us: Annotated[tuple[float, ...], runs_of(HOT)]


BANDWIDTH = Table("bandwidth", "bandwidth.csv", Copy, "harness copies")


def read(path: Path) -> pd.DataFrame:
    """The rows of a bandwidth.csv by size. Raises ResultsError where the file is missing or is something else."""
    copies = BANDWIDTH.read(path)
    if not len(copies) or not (copies[["bytes", "mean_us"]] > 0).to_numpy().all():
        raise ResultsError(f"{path} must have rows, with bytes and mean_us above 0: restore it or measure again")
    return copies.sort_values("bytes", ignore_index=True)


def find(device: Path) -> pd.DataFrame | None:
    """The rows of the bandwidth.csv under results/DEVICE, None where there is none. Raises ResultsError as `read`."""
    path = BANDWIDTH.path(device)
    return read(path) if stored(path).exists() else None


def copy_us(copies: pd.DataFrame, moved: Sequence[int]) -> np.ndarray:
    """Microseconds of copies of `moved` bytes each, read and written together; copies: as `read` returns them.

    Sizes that were not measured lie on straight lines between those that were, logarithm over logarithm. Sizes below
    the smallest or above the largest have NaN.
    """
    sizes, times = np.log(copies.bytes.to_numpy(float)), np.log(copies.mean_us.to_numpy(float))
    return np.exp(np.interp(np.log(np.asarray(moved, dtype=float)), sizes, times, left=np.nan, right=np.nan))
