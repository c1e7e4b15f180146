"""As tf32x3_wgmma, the weights made into TF32 parts by a kernel of their own: for much work on the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.tf32x3 import (
    PARTS,
    PRECISION_OF,
    PRODUCTS,
    SPLITS,
    Block,
    OverlapCosts,
    SplitConfig,
    arguments_of,
    depth_of,
    end_us,
    is_pointwise,
    overlapped_us,
    spread,
    stages_of,
    those_that_fit,
)
from cuconv.algorithms.tf32x3_wgmma import (
    ARCH,
    PIXELS,
    STAGE_DEPTH,
    TAP_BYTES,
    check_device_and_indices,
    has_pairs,
    inbox_bytes,
    layer_macros,
)
from cuconv.costs import constant, load
from cuconv.device import DeviceSpec
from cuconv.jit import WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

BARRIER_BYTES = 2 * 8  # of a stage
SPLIT_THREADS = 256  # as in the .cu file; a thread of split_weights carries four weights
MAX_SPLIT = 4


@dataclass(frozen=True, slots=True)
class Costs(OverlapCosts):
    """The constants of its cost model."""

    split_weights: float = constant("2**20 bytes read or written by the kernel that splits the weights")


COSTS = {precision: load(Costs, SOURCE.stem, precision) for precision in PRECISIONS}


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of bf filters x 64 * wp pixels, its wp warpgroups, and the stages of weights in shared memory."""

    bf: int
    wp: int
    stages: int

    @property
    def pixels(self) -> int:
        return PIXELS * self.wp

    @property
    def threads(self) -> int:
        return 128 * self.wp

    def registers(self, products: int) -> int:
        """Of a thread: close to what the compiler takes."""
        if products == 1:
            return 104 if self.bf == 64 else 128
        return 160 if self.bf == 64 else 224

    def stage_bytes(self, products: int) -> int:
        """All parts of the weights of a stage."""
        return FLOAT_BYTES * PARTS[products] * self.bf * STAGE_DEPTH

    def __str__(self) -> str:
        return f"{self.bf}x{self.pixels}x{STAGE_DEPTH} stages={self.stages}"


TILES = (Tile(64, 1, 4), Tile(64, 2, 4), Tile(64, 3, 4), Tile(128, 1, 3), Tile(128, 2, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tf32x3PresplitConfig(SplitConfig):
    """SplitConfig, and the blocks of the kernel that splits the weights into the workspace."""

    split_blocks: int


def variants(arch: str) -> list[dict[str, int]]:
    """Each tile once, and each other macro in each of its settings."""
    if arch != ARCH:
        return []
    many, pointwise = ConvProblem(2, 32, 9, 9, 8, 3, 3), ConvProblem(1, 32, 9, 9, 8, 1, 1)
    paired, splits = ConvProblem(2, 32, 9, 8, 8, 1, 1), (1, MAX_SPLIT)
    sample = [_macros(problem, tile, split, True) for problem in (many, paired) for tile in TILES for split in splits]
    sample += [_macros(pointwise, TILES[-1], split, aligned=True) for split in splits]
    sample.append(_macros(ConvProblem(1, 32, 9, 9, 8, 7, 7, 3, 3), TILES[0], 2, aligned=True))
    sample += [_macros(many, tile, split, aligned=True, products=1) for tile in TILES for split in splits]
    sample += [_macros(problem, TILES[-1], 1, True, products=1) for problem in (pointwise, paired)]
    pixels = _macros(paired, TILES[-1], 1, aligned=True)
    return [*sample, pixels | {"EVICT_FIRST": 5}]


def candidates(problem: ConvProblem, device: DeviceSpec) -> list[Tf32x3PresplitConfig]:
    """The configurations that can run; raises UnsupportedProblem where there is none."""
    check_device_and_indices(problem, device)
    stages = stages_of(problem, STAGE_DEPTH)
    pointwise, products = is_pointwise(problem), PRODUCTS[problem.precision]
    found = []
    for tile in TILES:
        filter_tiles = ceil(problem.m / tile.bf)
        tiles = filter_tiles * ceil(problem.n * problem.out_pixels / tile.pixels)
        for split in (split for split in SPLITS if split <= min(stages, MAX_SPLIT)):
            taps = 0 if pointwise else (ceil(stages / split) + 1) * STAGE_DEPTH
            pipeline_bytes = tile.stages * (tile.stage_bytes(products) + BARRIER_BYTES)
            config = Tf32x3PresplitConfig(
                tile,
                split,
                pointwise,
                blocks=tiles * split,
                split_blocks=ceil(filter_tiles * stages * tile.bf * STAGE_DEPTH / (4 * SPLIT_THREADS)),
                shared_bytes=pipeline_bytes + inbox_bytes(tile.bf, tile.pixels, split) + TAP_BYTES * taps,
                workspace_bytes=filter_tiles * stages * tile.stage_bytes(products),
                products=products,
            )
            found.append(spread(config, device, tile.registers(products), follows=True))
    return those_that_fit(found, problem, device)


def configure(problem: ConvProblem, device: DeviceSpec) -> Tf32x3PresplitConfig:
    """The candidate of least predicted time."""
    return min(candidates(problem, device), key=lambda config: predicted_us(problem, device, config))


def predicted_us(
    problem: ConvProblem, device: DeviceSpec, config: Tf32x3PresplitConfig, costs: Costs | None = None
) -> float:
    """Estimated device time of both kernels in microseconds."""
    costs = costs or COSTS[PRECISION_OF[config.products]]
    tile = config.tile
    stages = stages_of(problem, STAGE_DEPTH, config.split)
    filters = tile.bf / 64
    wait_us = costs.turn + costs.turn_filters * filters + costs.turn_warpgroup * tile.wp
    single_us = 0.0 if has_pairs(problem, aligned=True) else costs.work_single
    block = Block(
        resident=device.resident_blocks(tile.threads, tile.registers(config.products), config.shared_bytes),
        turns=stages,
        wait_us=wait_us + (costs.pointwise_turn if config.pointwise else 0.0),
        work_us=(costs.work + costs.work_filters * filters + single_us) * tile.wp,
        end_us=end_us(costs, tile.bf * tile.pixels, config.split),
        traffic_us=costs.traffic * stages * STAGE_DEPTH * (tile.bf + tile.pixels) / 2**11,
    )
    moved_bytes = (1 + 1 / PARTS[config.products]) * config.workspace_bytes  # reads one part, writes all
    split_us = costs.split_weights * moved_bytes / 2**20
    return split_us + overlapped_us(problem, device, config, costs, block)


def launches(problem: ConvProblem, config: Tf32x3PresplitConfig, aligned: bool, relu: bool) -> tuple[Launch, ...]:
    """Both kernels; each may start while the one ahead of it in the stream ends, and waits by itself."""
    macros = _macros(problem, config.tile, config.split, aligned, config.products)
    weights = (WEIGHT, WORKSPACE, problem.m, depth_of(problem))
    operands_and_sizes = arguments_of(problem, relu)
    arguments = (*operands_and_sizes[:4], WORKSPACE, *operands_and_sizes[4:])
    grid = (config.blocks, config.threads)
    return (
        Launch(SOURCE, macros, "split_weights", config.split_blocks, SPLIT_THREADS, weights, overlap=True),
        Launch(SOURCE, macros, SOURCE.stem, *grid, arguments, config.shared_bytes, overlap=True),
    )


def _macros(problem: ConvProblem, tile: Tile, split: int, aligned: bool, products: int = 3) -> dict[str, int]:
    macros = {"BF": tile.bf, "WP": tile.wp, "STAGES": tile.stages, "SPLIT": split, "PRODUCTS": products}
    return macros | layer_macros(problem, aligned)
