"""Two made-up algorithms with cost models of three constants: fits of them take milliseconds.

Each has four tiles to choose from. `Small` has the shorter start and refuses filters above 3x3, `Large` multiplies
faster. The times are those of other constants than the ones in use.
"""

import csv
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.base import Algorithm
from cuconv.core.costs import constant
from cuconv.core.launch import Launch
from cuconv.core.problem import UnsupportedProblem
from cuconv.device import H200
from harness.cases.catalogue import Case, Layer
from harness.tune import candidates
from harness.tune.fit import Row

TILES = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class ToyConfig:
    """A tile of a number of output elements, one block for each."""

    tile: int
    blocks: int
    threads: int = 32
    shared_bytes: int = 0
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"tile={self.tile}"


@dataclass(frozen=True)
class ToyCosts:
    start: float = constant("a call")
    block: float = constant("a block")
    multiply: float = constant("a million multiplications of a block")


class Toy(Algorithm[ToyConfig, ToyCosts]):
    precisions = ("fp32", "tf32")
    costs_type = ToyCosts
    in_use: ToyCosts  # the constants that a fit starts from
    true: ToyCosts  # the constants by which the made-up times are
    largest_filter = 9

    def costs(self, precision="fp32"):
        return self.in_use

    def variants(self, arch):
        return [{"TILE": tile} for tile in TILES]

    def candidates(self, problem, device):
        if problem.kh > self.largest_filter:
            raise UnsupportedProblem(f"filter {problem.kh}x{problem.kw}: at most {self.largest_filter}")
        outputs = problem.n * problem.m * problem.out_h * problem.out_w
        return [ToyConfig(tile, ceil(outputs / tile)) for tile in TILES]

    def kernels(self, problem, config, options):
        return (Launch(self.source, {"TILE": config.tile}, self.name, config.blocks, config.threads, ()),)

    def estimate_us(self, problem, device, config, costs):
        rounds = ceil(config.blocks / device.sm_count)
        millions = 1e-6 * config.tile * problem.c * problem.kh * problem.kw
        return costs.start + rounds * (costs.block + costs.multiply * millions)

    def measured_us(self, problem, config):
        return self.estimate_us(problem, H200, config, self.true)


class Large(Toy):
    source = Path("toy_large.cu")
    summary = "much work"
    in_use = ToyCosts(start=4.0, block=0.05, multiply=2.0)
    true = ToyCosts(start=6.0, block=0.03, multiply=3.0)


class Small(Toy):
    source = Path("toy_small.cu")
    summary = "little work"
    in_use = ToyCosts(start=1.0, block=0.02, multiply=6.0)
    true = ToyCosts(start=1.2, block=0.05, multiply=9.0)
    largest_filter = 3


TOYS = {toy.name: toy for toy in (Large(), Small())}
TRUE = {name: toy.true for name, toy in TOYS.items()}


def cases() -> list[Case]:
    """Twelve layers at three batch sizes, from a microsecond to hundreds."""
    shapes = [
        (7, 1, 32, 16), (7, 3, 64, 32), (7, 5, 32, 48), (14, 1, 128, 64), (14, 3, 96, 16), (14, 5, 48, 16),
        (28, 1, 64, 192), (28, 3, 32, 64), (13, 3, 256, 96), (13, 1, 48, 256), (27, 5, 64, 32), (55, 1, 16, 64),
    ]  # fmt: skip
    layers = [
        Layer(("toy",), (f"{hw}-{k}-{m}-{c}",), hw, hw, c, m, k, k // 2, 1, 1, 1, k, k // 2) for hw, k, m, c in shapes
    ]
    return [Case(layer, batch) for layer in layers for batch in (1, 4, 16)]


def rows(*names: str) -> list[Row]:
    """Every configuration of these toys, by default of both, on every case that they compute."""
    return [Row(case.problem, name, config, us) for case, name, config, us in measured(*names)]


def measured(*names: str) -> list[tuple[Case, str, ToyConfig, float]]:
    """A row with its case, as `write` takes it."""
    found = []
    for case in cases():
        for name in names or TOYS:
            toy, problem = TOYS[name], case.problem
            if problem.kh <= toy.largest_filter:
                configs = toy.candidates(problem, H200)
                found += [(case, name, config, toy.measured_us(problem, config)) for config in configs]
    return found


def write(folder: Path, measured: Iterable[tuple[Case, str, object, float]], *reports: dict[str, object]) -> Path:
    """A folder as `python -m harness tune` writes it; a row is case, algorithm, configuration and microseconds.

    environment.json has these reports, by default that of one H200.
    """
    with gzip.open(folder / "candidates.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(candidates.CANDIDATES.columns)
        writer.writerows([*case.key, name, config, 1.0, us, us, us, us] for case, name, config, us in measured)
    environments = dict(enumerate(reports or [report()]))
    (folder / "environment.json").write_text(json.dumps({"environments": environments}))
    return folder


def report(**changes: object) -> dict[str, object]:
    """The facts of an H200 in environment.json, with changes."""
    facts = {"gpu": H200.name, "compute_capability": "9.0", "multiprocessors": H200.sm_count, "commit": None}
    return facts | changes
