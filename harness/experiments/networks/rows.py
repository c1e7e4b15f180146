"""networks.csv, breakdown.csv and energy.csv: times of whole networks, their kernels by kind, and energy an image.

A row of networks.csv is one contender on one network and batch, in one precision and mode. A row of breakdown.csv is
one kind of kernel of a contender. A row of energy.csv is one contender in mode graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.store.table import Table, runs_of
from harness.store.times import HOT, RUNS

GRAPH, EAGER = MODES = ("graph", "eager")
OK, ERROR, TIMEOUT = "ok", "error", "timeout"
TORCH_COMPILE = "torch_compile"
TORCH_COMPILE_FROZEN = "torch_compile_frozen"
TORCH_FROZEN_CHANNELS_LAST = "torch_frozen_channels_last"
TORCH_FASTEST_ENGINES = "torch_fastest_engines"  # none of torch's own ways
TORCH_CONTENDERS = ("torch", "torch_channels_last", TORCH_COMPILE, TORCH_COMPILE_FROZEN, TORCH_FROZEN_CHANNELS_LAST)
CUCONV, CUCONV_ENABLED = "cuconv", "cuconv_enabled"
TORCHVISION, HARNESS = "torchvision", "harness"  # sources; those of the harness are in architectures.py
PAPER_NETWORKS = ("alexnet", "googlenet", "resnet50", "squeezenet1_1", "vgg19")  # torchvision's

KEY_COLUMNS = ("network", "source", "batch", "contender", "precision", "mode")


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
    runs_us: Annotated[tuple[float, ...], runs_of(HOT)] = ()
    environment: str = ""

    def __post_init__(self) -> None:
        if (self.status == OK) != bool(self.runs_us) or self.status not in (OK, ERROR, TIMEOUT):
            raise ValueError(f"status {self.status!r} with {len(self.runs_us)} runs: exactly the rows that are ok have")
        if len(self.runs_us) > RUNS:
            raise ValueError(f"{len(self.runs_us)} runs: at most {RUNS}")


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


NETWORKS = Table("networks", "networks.csv", NetworkTime, "harness networks", keys=KEY_COLUMNS)
OF_KERNELS = ("network", "batch", "contender", "precision")
BREAKDOWN = Table("networks", "breakdown.csv", KernelsOfKind, "harness networks --breakdown", keys=OF_KERNELS)
ENERGY = Table("networks", "energy.csv", NetworkEnergy, "harness networks --energy", keys=KEY_COLUMNS[:-1])


def label(network: str, source: str) -> str:
    """The name of a network as a user types it: "resnet50", "unet", "timm:resnest14d"."""
    return network if source in (TORCHVISION, HARNESS) else f"{source}:{network}"
