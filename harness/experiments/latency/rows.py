"""latency.csv: one row per first result that was timed."""

from __future__ import annotations

from dataclasses import dataclass

from harness.store.table import Table

SIZE, START, CONVERT = WHATS = ("size", "start", "convert")
TORCH, CUCONV = CONTENDERS = ("torch", "cuconv")
NO_CACHE, EMPTY, FULL = CACHES = ("-", "empty", "full")

Group = tuple[str, str, str, str]  # what rows have in common that are measured in the same way
GROUP_COLUMNS = ("what", "network", "contender", "cache")


@dataclass(frozen=True, slots=True)
class Latency:
    """One row of latency.csv.

    what       "size": the first call of an input size. "start": a process from its start to its first result.
               "convert": cuconv.nn.convert
    cache      cuConv's compile cache at the start of the process, "empty" or "full"; "-" for torch
    first_ms   wall-clock milliseconds of the first result, or of convert
    second_ms  those of the next call, after the kernels that the first one asked for have been compiled
    again_ms   the median of the calls that follow; None, as second_ms, where there are none
    """

    what: str
    network: str
    contender: str
    cache: str
    height: int
    width: int
    first_ms: float
    second_ms: float | None = None
    again_ms: float | None = None
    environment: str = ""


LATENCY = Table("latency", "latency.csv", Latency, "harness latency", keys=GROUP_COLUMNS)
