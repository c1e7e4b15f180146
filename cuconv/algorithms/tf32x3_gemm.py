"""Implicit GEMM on the tensor cores at FP32 accuracy (3xTF32), the reduction split over warps and a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from cuconv.device import DeviceSpec
from cuconv.jit import Launcher, Pointers
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")

SPLITS = (1, 2, 4, 8)  # blocks of a cluster that share a tile; 8 is what every GPU with clusters grants
MAX_INDEX = 2**31 - 1  # the kernel's integers
MAX_FILTER_AREA = 63  # its mask of filter positions has 64 bits, of which one stays empty
TAP_BYTES = 4  # an entry of its tap table: 6 bits for the filter position, the others for an offset into an image
MAX_IMAGE = 2**25 - 1
MAX_TILE = 128  # a size is rounded up to whole tiles
VECTOR_FLOATS = 4  # weights of a 16-byte copy
REGISTERS = 128  # of a thread, no variant for compute capability 9.0 takes more

# Costs, in microseconds: least squares over 172 layers of the paper at batch 1 and 8, up to 40 configurations each,
# on an H200. For a warp group to get through a stage that it has to wait for, by the elements a thread fetches:
FETCH_US, POINTWISE_FETCH_US, WARP_GROUP_US = 0.0388, 0.0054, 0.0403
# For an SM that is busy all the time: 2**16 multiply-adds, fetching 2**11 elements of columns and of weights.
MULTIPLY_US, COLUMNS_US, WEIGHTS_US = 0.307, 0.072, 0.0464


@dataclass(frozen=True, slots=True)
class Costs:
    """What a launch costs besides its stages, in microseconds."""

    start: float  # a launch
    taps: float  # its tap tables, where there are any
    block: float  # a block from start to end, without its stages
    cluster: float  # the same, in addition, in a cluster
    write: float  # an SM's time to write 4096 outputs
    exchange: float  # an SM's time to exchange 4096 sums with the cluster


COSTS = Costs(start=1.11, taps=0.628, block=1.36, cluster=0.467, write=0.744, exchange=0.483)
# SMs that can take part in clusters; others are left over in their part of the chip. Measured: 31 clusters of 4 and 15
# of 8 run at a time where an SM holds one block; one more waits for a whole round.
CLUSTER_SMS = {1: 1.0, 2: 1.0, 4: 0.94, 8: 0.91}
DRAM_BYTES_PER_US = 3e6


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of bm filters x bn pixels, its wm x wn x wk warps (wk over the reduction), and its pipeline."""

    bm: int
    bn: int
    wm: int
    wn: int
    wk: int
    bk: int  # depth of a stage
    stages: int  # in flight

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn * self.wk

    @property
    def pipeline_bytes(self) -> int:
        """Shared memory of the stages in flight; rows are padded against bank conflicts."""
        return FLOAT_BYTES * self.stages * (self.bm * (self.bk + 4) + self.bk * (self.bn + 8))

    @property
    def sums_bytes(self) -> int:
        """Shared memory of every warp's sums, in the place of the stages."""
        return FLOAT_BYTES * self.wk * self.bm * (self.bn + 8)

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk} stages={self.stages} warps={self.wm}x{self.wn}x{self.wk}"


TILES = (
    Tile(32, 32, 1, 1, 8, 64, 3),
    Tile(32, 64, 1, 2, 4, 32, 4),
    Tile(32, 64, 1, 2, 4, 64, 3),
    Tile(32, 64, 1, 2, 8, 64, 3),
    Tile(64, 32, 2, 1, 4, 32, 4),
    Tile(64, 64, 2, 2, 2, 32, 4),
    Tile(64, 64, 2, 2, 4, 32, 4),
    Tile(64, 64, 2, 2, 1, 32, 4),
    Tile(128, 64, 4, 2, 1, 32, 3),
    Tile(64, 128, 2, 4, 1, 32, 3),
)


@dataclass(frozen=True, slots=True)
class Tf32x3GemmConfig:
    """A tile, the blocks of a cluster that share it, and the grid; pointwise leaves out what padding needs."""

    tile: Tile
    split: int
    pointwise: bool
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"tile={self.tile} split={self.split} grid={self.blocks} shared={self.shared_bytes}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tile.threads


def variants(arch: str) -> list[dict[str, int]]:
    """Each tile once, and each other macro in each of its settings."""
    sample = [_macros(tile, split=1, pointwise=False, vector=True) for tile in TILES]
    for pointwise, vector in ((False, False), (True, False), (True, True)):
        sample.append(_macros(TILES[0], 1, pointwise, vector))
    if int(arch.strip("sm_af")) >= 90:
        sample += [_macros(TILES[0], split, pointwise=False, vector=True) for split in SPLITS[1:]]
        sample.append(_macros(TILES[-1], SPLITS[-1], pointwise=True, vector=True))
    return sample


def candidates(problem: ConvProblem, device: DeviceSpec) -> list[Tf32x3GemmConfig]:
    """The configurations that can run; raises UnsupportedProblem where there is none."""
    check_indices(problem, MAX_IMAGE)
    found = []
    for tile in TILES:
        stages = stages_of(problem, tile.bk)
        tiles = ceil(problem.m / tile.bm) * ceil(problem.n * problem.out_pixels / tile.bn)
        for split in SPLITS if device.has_clusters else SPLITS[:1]:
            if split > stages:
                break
            taps = 0 if is_pointwise(problem) else ceil(stages / split) * tile.bk
            shared_bytes = max(tile.pipeline_bytes + TAP_BYTES * taps, tile.sums_bytes)
            found.append(Tf32x3GemmConfig(tile, split, is_pointwise(problem), tiles * split, shared_bytes))
    return those_that_fit(found, problem, device)


def configure(problem: ConvProblem, device: DeviceSpec) -> Tf32x3GemmConfig:
    """The candidate of least predicted time."""
    return min(candidates(problem, device), key=lambda config: predicted_us(problem, device, config))


def predicted_us(problem: ConvProblem, device: DeviceSpec, config: Tf32x3GemmConfig) -> float:
    """Estimated device time in microseconds; within 7% (root mean square) where it was measured."""
    tile = config.tile
    stages = stages_of(problem, tile.bk, config.split)
    fetch_us = POINTWISE_FETCH_US if config.pointwise else FETCH_US
    wait_us = fetch_us * tile.bn * tile.bk / tile.threads + WARP_GROUP_US * tile.threads / 128
    work_us = MULTIPLY_US * tile.bm * tile.bn * tile.bk / 2**16
    work_us += (COLUMNS_US * tile.bn + WEIGHTS_US * tile.bm) * tile.bk / 2**11
    resident = device.resident_blocks(tile.threads, REGISTERS, config.shared_bytes)
    outputs = tile.bm * tile.bn
    return grid_us(problem, device, config, COSTS, resident, stages * wait_us, stages * work_us, outputs, tile.wk)


def launch(
    problem: ConvProblem, config: Tf32x3GemmConfig, launcher: Launcher, pointers: Pointers, relu: bool = False
) -> None:
    """Enqueue the kernel."""
    macros = _macros(config.tile, config.split, config.pointwise, has_aligned_rows(problem, pointers))
    arguments = arguments_of(problem, pointers, relu)
    launcher(SOURCE, macros, SOURCE.stem, config.blocks, config.threads, arguments, config.shared_bytes)


def _macros(tile: Tile, split: int, pointwise: bool, vector: bool) -> dict[str, int]:
    macros = {name.upper(): getattr(tile, name) for name in ("bm", "bn", "wm", "wn", "wk", "bk", "stages")}
    return macros | {"SPLIT": split, "POINTWISE": int(pointwise), "VECTOR": int(vector)}


# What follows also serves tf32x3_wgmma, which numbers the reduction and takes its arguments alike.


def depth_of(problem: ConvProblem) -> int:
    """Length of the reduction."""
    return problem.c * problem.filter_area


def stages_of(problem: ConvProblem, stage_depth: int, split: int = 1) -> int:
    """Stages of the block that has most of them, where `split` blocks share the reduction."""
    return ceil(ceil(depth_of(problem) / stage_depth) / split)


def is_pointwise(problem: ConvProblem) -> bool:
    """A 1x1 filter without padding: the columns are the input as it lies."""
    return problem.filter_area == 1 and problem.pad_h == problem.pad_w == 0


def has_aligned_rows(problem: ConvProblem, pointers: Pointers) -> bool:
    """Whether each filter starts at a multiple of 16 bytes, as copies of four weights need."""
    return depth_of(problem) % VECTOR_FLOATS == 0 and pointers.weight % (VECTOR_FLOATS * FLOAT_BYTES) == 0


def arguments_of(problem: ConvProblem, pointers: Pointers, relu: bool) -> tuple[int, ...]:
    """The kernels' arguments, in order."""
    p = problem
    sizes = (p.n, p.c, p.h, p.w, p.m, p.kh, p.kw, p.pad_h, p.pad_w, p.out_h, p.out_w)
    return (pointers.input, pointers.weight, pointers.bias, pointers.output, *sizes, int(relu))


def check_indices(problem: ConvProblem, max_image: int) -> None:
    """Raises UnsupportedProblem where a size does not fit the kernels' integers.

    max_image: elements of one image that the offsets in the kernel's tap table can tell apart.
    """
    p = problem
    sizes = [
        ("filter positions", p.filter_area, MAX_FILTER_AREA),
        ("output pixels in the batch", p.n * p.out_pixels, MAX_INDEX - MAX_TILE),
        ("filters", p.m, MAX_INDEX - MAX_TILE),
        ("weights in a filter", depth_of(p), MAX_INDEX - MAX_TILE),
    ]
    if not is_pointwise(p):
        reach = ((p.c - 1) * p.h + p.kh - 1) * p.w + p.kw  # of the last tap: a filter may be larger than its input
        sizes.append(("input elements in an image", max(p.c * p.h * p.w, reach), max_image))
    for what, size, limit in sizes:
        if size > limit:
            raise UnsupportedProblem(f"{p.label}: {size} {what}, the limit of the tf32x3 algorithms is {limit}")


def those_that_fit(found: list, problem: ConvProblem, device: DeviceSpec) -> list:
    """The configurations that the device can launch; raises UnsupportedProblem where there is none."""
    blocks = min(config.blocks for config in found)
    if blocks > MAX_INDEX:
        raise UnsupportedProblem(f"{problem.label}: a grid of {blocks} blocks, the limit is {MAX_INDEX}")
    limit = device.shared_bytes_per_block
    fit = [config for config in found if config.blocks <= MAX_INDEX and config.shared_bytes <= limit]
    if not fit:
        least = min(config.shared_bytes for config in found)
        raise UnsupportedProblem(
            f"{problem.label}: {least} bytes of shared memory for its {depth_of(problem)} weights in a filter, "
            f"the limit of {device.name} is {limit}"
        )
    return fit


def grid_us(
    problem: ConvProblem,
    device: DeviceSpec,
    config: Any,
    costs: Costs,
    resident: int,
    wait_us: float,
    work_us: float,
    outputs: int,
    copies: int,
) -> float:
    """Estimated time of a whole launch.

    resident: blocks that an SM holds at a time. wait_us, work_us: a block's stages, if nothing but their latency
    counts, and on an SM that always has another block to turn to. outputs: of a tile; copies: sums of each in a block.

    Blocks come in rounds of `resident`; a round waits for a block's chain of stages, and every block adds its work.
    """
    split = config.split
    clusters_at_a_time = max(1, int(device.sm_count * CLUSTER_SMS[split] / split))
    blocks_of_an_sm = ceil(config.blocks / split / clusters_at_a_time)
    round_us = costs.block + wait_us
    block_us = work_us + costs.write * outputs / 4096 / split
    if split > 1:
        round_us += costs.cluster
        block_us += costs.exchange * outputs * copies / 4096
    compute_us = ceil(blocks_of_an_sm / resident) * round_us + blocks_of_an_sm * block_us
    start_us = costs.start if config.pointwise else costs.start + costs.taps
    return start_us + max(compute_us, problem.min_bytes / DRAM_BYTES_PER_US)
