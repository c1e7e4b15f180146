"""host.csv: one row per layer, or kind of first call, and kind of call."""

from __future__ import annotations

from dataclasses import dataclass

from harness.store.table import Table

CALL = ("layer", "provider", "algorithm", "output")  # columns that tell the rows apart


@dataclass(frozen=True, slots=True)
class HostTime:
    """The median host microseconds of `calls` calls.

    layer: HW-N-K-M-C, or the name of a `FirstCall`. output is "new" where a call allocates it, or "given".
    """

    layer: str
    provider: str
    algorithm: str
    output: str
    calls: int
    median_us: float


HOST = Table("host", "host.csv", HostTime, "harness host")
