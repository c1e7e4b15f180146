"""The paper's algorithm (section 3): dot products of filter rows along Z, then a sum over filter positions."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")

# (filter rows of a block, dot products of a thread), from most reuse of a loaded input element to least.
REUSE = ((8, 2), (8, 1), (2, 1), (1, 1))

# Measured on an H200 over the paper's layers at batch 1, 8 and 32: with these two numbers the geometry is within
# 4% of the best one in the mean, 35% at worst.
THREADS_PER_SM = 192  # less reuse is better than a grid with fewer threads than this
# A block could hold 1024, but splitting a filter row over blocks of 256 exposes more parallelism. Splitting it
# further, until no SM idles, loses 2 to 20%: every block loads the filter row again.
MAX_THREADS = 256

WARP = 32
LOADS = 16  # as in the .cu file: input elements that a thread has in flight
ROWS_BYTES = 32 * 1024  # shared memory for a block's filter rows; longer rows pass through it in parts
PLANES_BYTES = 1 << 30  # temporary planes at a time, the paper's limit (section 4): larger batches go in passes
MAX_INDEX = 2**31 - 1  # dot products of a filter row, and blocks of a grid


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of its cost model, in microseconds."""

    start: float = constant("a launch of the first stage")
    channels: float = constant("a block's walk along 16 channels")
    reused: float = constant("an SM's time for 10**6 FLOP, with the most reuse of loaded elements")
    flop: float = constant("the same with less reuse")
    write: float = constant("10**6 bytes of output")
    planes_start: float = constant("a launch of the second stage")
    planes: float = constant("10**6 bytes of temporary planes, written or read")


@dataclass(frozen=True, slots=True)
class TwoStageConfig:
    """Launch geometry: each block forms `rows` filter rows times threads * dots dot products.

    images_per_pass images are convolved at a time, channels_per_pass channels of the filter rows are in
    shared memory at a time; blocks and sum_blocks are the grids of the two stages for a whole pass.
    """

    rows: int
    dots: int
    threads: int
    channels_per_pass: int
    images_per_pass: int
    blocks: int
    sum_blocks: int
    workspace_bytes: int

    @property
    def shared_bytes(self) -> int:
        """For a block's filter rows, in whole groups of the channels that a thread loads at a time."""
        group = LOADS // self.dots
        return FLOAT_BYTES * self.rows * group * ceil(self.channels_per_pass / group)

    def __str__(self) -> str:
        sum_stage = f" sum_grid={self.sum_blocks}" if self.sum_blocks else ""
        return (
            f"rows={self.rows} dots={self.dots} threads={self.threads} grid={self.blocks} "
            f"shared={self.shared_bytes}{sum_stage} images_per_pass={self.images_per_pass}"
        )


class TwoStage(Algorithm[TwoStageConfig, Costs]):
    """The paper's algorithm (section 3): dot products of filter rows along Z, then a sum over filter positions."""

    source = SOURCE
    summary = (
        "The paper's algorithm (section 3): dot products of filter rows along Z, then a sum over filter positions."
    )
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Every macro setting that may be compiled; the same for all architectures."""
        return [{"ROWS": rows, "DOTS": dots} for rows, dots in REUSE]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[TwoStageConfig]:
        """The one that its rule gives."""
        return [self.configure(problem, device)]

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: TwoStageConfig, costs: Costs) -> float:
        """Estimated device time in microseconds.

        Its stages move what is too large for the cache, and rarely share it with the arithmetic: the times add up.
        """
        passes = ceil(problem.n / config.images_per_pass)
        outputs_bytes = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels
        flop_us = costs.reused if config.rows == REUSE[0][0] else costs.flop
        us = costs.start + passes * costs.channels * ceil(problem.c / LOADS)
        us += flop_us * problem.flop / 1e6 / device.sm_count + costs.write * outputs_bytes / 1e6
        if config.sum_blocks:
            us += passes * costs.planes_start + costs.planes * 2 * outputs_bytes * problem.filter_area / 1e6
        return us

    def launches(self, problem: ConvProblem, config: TwoStageConfig, aligned: bool, relu: bool) -> tuple[Launch, ...]:
        """Both stages for each pass over the batch; a 1x1 filter needs the first only (section 3).

        The last stage adds the bias and applies ReLU.
        """
        p, out_pixels = problem, problem.out_pixels
        macros = {"ROWS": config.rows, "DOTS": config.dots}
        epilogue = (BIAS, int(relu))
        nothing = (0, 0)
        sizes = (p.c, p.h, p.w, p.m, p.kh, p.kw, p.pad_h, p.pad_w, p.out_h, p.out_w, config.channels_per_pass)
        found = []
        for first in range(0, p.n, config.images_per_pass):
            images = min(config.images_per_pass, p.n - first)
            source = INPUT + FLOAT_BYTES * first * p.c * p.h * p.w
            target = OUTPUT + FLOAT_BYTES * first * p.m * out_pixels
            planes, finish = (WORKSPACE, nothing) if config.sum_blocks else (target, epilogue)
            blocks = _blocks(p, images, config.rows, config.dots, config.threads)
            arguments = (source, WEIGHT, planes, images, *sizes, *finish)
            found.append(
                Launch(self.source, macros, "scalar_prods", blocks, config.threads, arguments, config.shared_bytes)
            )
            if config.sum_blocks:
                size = images * p.m * out_pixels
                arguments = (planes, target, size, p.filter_area, p.m, out_pixels, *epilogue)
                found.append(
                    Launch(self.source, macros, "sum_planes", ceil(size / MAX_THREADS), MAX_THREADS, arguments)
                )
        return tuple(found)

    def configure(self, problem: ConvProblem, device: DeviceSpec) -> TwoStageConfig:
        """The geometry for a problem: the most reuse of loaded elements whose grid still occupies the GPU.

        Raises UnsupportedProblem where an index would not fit the kernel.
        """
        images = _images_per_pass(problem)
        for rows, dots in REUSE:
            threads = _threads(images * problem.out_pixels, dots)
            blocks = _blocks(problem, images, rows, dots, threads)
            if rows <= problem.m and blocks * threads >= THREADS_PER_SM * device.sm_count:
                break
        sum_blocks = 0 if problem.filter_area == 1 else ceil(images * problem.m * problem.out_pixels / MAX_THREADS)
        if max(blocks, sum_blocks) > MAX_INDEX:
            raise UnsupportedProblem(
                f"{problem.label}: two_stage would launch {max(blocks, sum_blocks)} blocks, the limit is {MAX_INDEX}: "
                "convolve a smaller batch or fewer filters at a time"
            )
        return TwoStageConfig(
            rows=rows,
            dots=dots,
            threads=threads,
            channels_per_pass=min(problem.c, ROWS_BYTES // (FLOAT_BYTES * rows)),
            images_per_pass=images,
            blocks=blocks,
            sum_blocks=sum_blocks,
            workspace_bytes=images * _planes_bytes(problem) if sum_blocks else 0,
        )


def _images_per_pass(problem: ConvProblem) -> int:
    """As many images as keep the temporary planes within their limit and a row's dot products countable."""
    if problem.out_pixels > MAX_INDEX or problem.h * problem.w > MAX_INDEX:
        raise UnsupportedProblem(
            f"{problem.label}: a plane of more than {MAX_INDEX} elements is beyond two_stage: split it into tiles"
        )
    images = min(problem.n, MAX_INDEX // problem.out_pixels)
    if problem.filter_area > 1:
        images = min(images, PLANES_BYTES // _planes_bytes(problem))
    return max(1, images)


def _planes_bytes(problem: ConvProblem) -> int:
    """Temporary memory for one image: H_f * W_f planes for each filter."""
    return FLOAT_BYTES * problem.filter_area * problem.m * problem.out_pixels


def _threads(dots_per_row: int, dots: int) -> int:
    """Whole warps, no more than the row has work for."""
    return min(MAX_THREADS // dots, WARP * ceil(dots_per_row / (WARP * dots)))


def _blocks(problem: ConvProblem, images: int, rows: int, dots: int, threads: int) -> int:
    row_groups = ceil(problem.m / rows) * problem.filter_area
    return row_groups * ceil(images * problem.out_pixels / (threads * dots))
