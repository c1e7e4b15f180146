"""networks.csv, breakdown.csv and energy.csv: times of whole networks, their kernels by kind, and energy an image.

A row of networks.csv is one contender on one network and batch, in one precision and mode. A row of breakdown.csv is
one kind of kernel of a contender. A row of energy.csv is one contender in mode graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from harness.store.table import Table
from harness.store.times import HOT, RUNS, run_columns

GRAPH, EAGER = MODES = ("graph", "eager")
OK, ERROR = "ok", "error"
TORCH_COMPILE = "torch_compile"
TORCH_COMPILE_FROZEN = "torch_compile_frozen"
TORCH_FROZEN_CHANNELS_LAST = "torch_frozen_channels_last"
TORCH_FASTEST_ENGINES = "torch_fastest_engines"  # none of torch's own ways
TORCH_CONTENDERS = ("torch", "torch_channels_last", TORCH_COMPILE, TORCH_COMPILE_FROZEN, TORCH_FROZEN_CHANNELS_LAST)
CUCONV, CUCONV_ENABLED = "cuconv", "cuconv_enabled"
TORCHVISION = "torchvision"

KEY_COLUMNS = ("network", "source", "batch", "contender", "precision", "mode")
_MEASURED = ("rel_l2_error", "peak_memory_bytes", "first_forward_s", *run_columns(HOT), "mean_us")
COLUMNS = (*KEY_COLUMNS, "status", "detail", *_MEASURED, "environment")
_TEXT = ("network", "source", "contender", "precision", "mode", "status", "detail", "environment")
NETWORKS = Table("networks", "networks.csv", COLUMNS, _TEXT, "harness.networks", keys=len(KEY_COLUMNS))

_OF_CONTENDER = ("network", "batch", "contender", "precision")
BREAKDOWN = Table(
    NETWORKS.folder,
    "breakdown.csv",
    (*_OF_CONTENDER, "kind", "kernels", "us"),
    ("network", "contender", "precision", "kind"),
    "harness.networks --breakdown",
    keys=len(_OF_CONTENDER),
)
ENERGY = Table(
    NETWORKS.folder,
    "energy.csv",
    (*KEY_COLUMNS[:-1], "forwards", "seconds", "mj_per_image", "mean_w", "environment"),
    ("network", "source", "contender", "precision", "environment"),
    "harness.networks --energy",
    keys=len(KEY_COLUMNS) - 1,
)
DETAIL_LENGTH = 200


@dataclass(frozen=True, slots=True)
class NetworkTime:
    """One row of networks.csv. runs_us has the microseconds of a forward in each run, and none where it failed.

    peak_memory_bytes counts weights, activations and workspace of the contender alone. first_forward_s is in seconds
    of wall clock.
    """

    network: str
    source: str
    batch: int
    contender: str
    precision: str
    mode: str
    status: str
    detail: str = ""
    rel_l2_error: float | None = None
    peak_memory_bytes: int | None = None
    first_forward_s: float | None = None
    runs_us: tuple[float, ...] = ()
    environment: str = ""

    def __post_init__(self) -> None:
        if (self.status == OK) != bool(self.runs_us) or self.status not in (OK, ERROR):
            raise ValueError(f"status {self.status!r} with {len(self.runs_us)} runs: exactly the rows that are ok have")
        if len(self.runs_us) > RUNS:
            raise ValueError(f"{len(self.runs_us)} runs: at most {RUNS}")

    def cells(self) -> list[object]:
        """The row in the order of COLUMNS."""
        runs = [*self.runs_us, *[None] * (RUNS - len(self.runs_us))]
        times = dict(zip(run_columns(HOT), runs, strict=True))
        times["mean_us"] = fmean(self.runs_us) if self.runs_us else None
        values = {**times, "detail": " ".join(self.detail.split())[:DETAIL_LENGTH]}
        return [values[column] if column in values else getattr(self, column) for column in COLUMNS]


@dataclass(frozen=True, slots=True)
class KernelsOfKind:
    """One row of breakdown.csv: launches of one kind in a forward, and their device microseconds together."""

    network: str
    batch: int
    contender: str
    precision: str
    kind: str
    kernels: float
    us: float


@dataclass(frozen=True, slots=True)
class NetworkEnergy:
    """One row of energy.csv: millijoules an image and mean watts of the board, over some forwards and seconds."""

    network: str
    source: str
    batch: int
    contender: str
    precision: str
    forwards: int
    seconds: float
    mj_per_image: float
    mean_w: float
    environment: str = ""


def label(network: str, source: str) -> str:
    """The name of a network as a user types it: "resnet50", "timm:resnest14d"."""
    return network if source == TORCHVISION else f"{source}:{network}"
