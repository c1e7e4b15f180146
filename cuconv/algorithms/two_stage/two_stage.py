"""The paper's algorithm (section 3): dot products of filter rows along the channels, then a sum over filter positions.

`two_stage.cu` has the two kernels. A filter row is the C weights of one filter at one filter position.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil
from pathlib import Path

from cuconv.algorithms.base import Algorithm, CallOptions, Macros
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes, require_dense
from cuconv.core.costs import constant
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")

REUSE = ((8, 2), (8, 1), (2, 1), (1, 1))
"""(filter rows of a block, output pixels of a thread), from most reuse of a loaded input element to least."""

# Over the paper's layers at batch 1, 8 and 32 on an H200, these two numbers give a geometry within 4% of the best one
# in the mean and within 35% at worst.
THREADS_PER_SM = 192  # below this occupancy less reuse is faster
MAX_THREADS = 256  # larger blocks leave SMs idle, smaller ones load each filter row more often

WARP = 32
LOADS = 16  # input elements that a thread has in flight
ROWS_BYTES = 32 * 1024  # shared memory for a block's filter rows; longer rows pass through it in parts
PLANES_BYTES = 1 << 30  # the paper's limit of the temporary planes (section 4); larger batches go in passes


MAX_PASSES = 2**10  # two launches each


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds."""

    start: float = constant("a launch of the first stage")
    channels: float = constant("a block's loop over 16 channels")
    reused: float = constant("an SM's time for 10**6 FLOP, with the most reuse of loaded elements")
    flop: float = constant("the same with less reuse")
    write: float = constant("10**6 bytes of output")
    planes_start: float = constant("a launch of the second stage")
    planes: float = constant("10**6 bytes of temporary planes, written or read")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class TwoStageConfig:
    """The launch geometry of both stages.

    rows               filter rows of a block of stage one
    dots               output pixels of a thread; it forms rows * dots dot products
    threads            threads of a block of stage one
    channels_per_pass  channels of the filter rows that are in shared memory at a time
    images_per_pass    images whose temporary planes exist at a time
    filters_per_pass   filters whose temporary planes exist at a time; all of them where a pass has several images
    blocks             grid of stage one, for a whole pass
    sum_blocks         grid of stage two, for a whole pass; 0 for a 1x1 filter, which has no stage two
    workspace_bytes    the temporary planes
    """

    rows: int
    dots: int
    threads: int
    channels_per_pass: int
    images_per_pass: int
    filters_per_pass: int
    blocks: int
    sum_blocks: int
    workspace_bytes: int

    @property
    def shared_bytes(self) -> int:
        """The bytes of a block's filter rows; their channels are rounded up to what a thread loads at once."""
        group = LOADS // self.dots
        return FLOAT_BYTES * self.rows * group * ceil(self.channels_per_pass / group)

    def __str__(self) -> str:
        sum_stage = f" sum_grid={self.sum_blocks}" if self.sum_blocks else ""
        return (
            f"rows={self.rows} dots={self.dots} threads={self.threads} grid={self.blocks} "
            f"shared={self.shared_bytes}{sum_stage} images_per_pass={self.images_per_pass} "
            f"filters_per_pass={self.filters_per_pass}"
        )


class TwoStage(Algorithm[TwoStageConfig, Costs]):
    """The paper's algorithm; candidates() has the one configuration of a fixed rule."""

    source = SOURCE
    summary = "The paper's two stages in plain FP32: dot products along the channels, then a sum of planes. Stride 1."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; they are the same for every architecture."""
        return [_macros(rows, dots) for rows, dots in REUSE]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[TwoStageConfig]:
        """The one configuration of a rule; raises UnsupportedProblem where there is none."""
        return [self._by_rule(problem, device)]

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: TwoStageConfig, costs: Costs) -> float:
        """The device time in microseconds: the sum of all terms, which rarely overlap, or the time of the operands.

        Blocks multiply whole groups of filter rows and of channels.
        """
        passes = _passes(problem, config.images_per_pass, config.filters_per_pass)
        outputs_bytes = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels
        flop_us = costs.reused if config.rows == REUSE[0][0] else costs.flop
        group = LOADS // config.dots
        padded = ceil(problem.m / config.rows) * config.rows * ceil(problem.c / group) * group
        flop = problem.flop * padded / (problem.m * problem.c)
        us = costs.start + passes * costs.channels * ceil(problem.c / LOADS)
        us += flop_us * flop / 1e6 / device.sm_count + costs.write * outputs_bytes / 1e6
        if config.sum_blocks:
            us += passes * costs.planes_start + costs.planes * 2 * outputs_bytes * problem.filter_area / 1e6
        return max(us, costs.start + costs.memory * problem.min_bytes / 2**20)

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The time of a first stage, of the arithmetic with the most reuse and of the output, in microseconds."""
        costs = self.costs(problem.precision)
        outputs_bytes = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels
        flop_us = min(costs.reused, costs.flop) * problem.flop / 1e6 / device.sm_count
        return costs.start + flop_us + costs.write * outputs_bytes / 1e6

    def summation(self, config: TwoStageConfig) -> tuple[int, ...]:
        """Nothing: a dot product is one chain along the channels, and the planes are added in order."""
        return ()

    def kernels(self, problem: ConvProblem, config: TwoStageConfig, options: CallOptions) -> tuple[Launch, ...]:
        """Both stages for each pass over batch and filters; a 1x1 filter needs stage one only (section 3).

        The last stage adds the bias and computes the activation.
        """
        p, out_pixels = problem, problem.out_pixels
        macros = _macros(config.rows, config.dots)
        nothing = (0, *CallOptions().activation_arguments)
        geometry = (p.kh, p.kw, p.pad_h, p.pad_w, p.out_h, p.out_w, config.channels_per_pass)
        parts = product(range(0, p.n, config.images_per_pass), range(0, p.m, config.filters_per_pass))
        found = []
        for first, filter in parts:
            images = min(config.images_per_pass, p.n - first)
            filters = min(config.filters_per_pass, p.m - filter)
            source = INPUT + FLOAT_BYTES * first * p.c * p.h * p.w
            weight = WEIGHT + FLOAT_BYTES * filter * p.c * p.filter_area
            target = OUTPUT + FLOAT_BYTES * (first * p.m + filter) * out_pixels
            epilogue = (BIAS + FLOAT_BYTES * filter, *options.activation_arguments)
            planes, finish = (WORKSPACE, nothing) if config.sum_blocks else (target, epilogue)
            blocks = _blocks(p, images, filters, config.rows, config.dots, config.threads)
            arguments = (source, weight, planes, images, p.c, p.h, p.w, filters, *geometry, *finish)
            found.append(
                Launch(self.source, macros, "scalar_prods", blocks, config.threads, arguments, config.shared_bytes)
            )
            if config.sum_blocks:
                size = images * filters * out_pixels
                arguments = (planes, target, size, p.filter_area, filters, out_pixels, *epilogue)
                found.append(
                    Launch(self.source, macros, "sum_planes", ceil(size / MAX_THREADS), MAX_THREADS, arguments)
                )
        return tuple(found)

    def _by_rule(self, problem: ConvProblem, device: DeviceSpec) -> TwoStageConfig:
        """The geometry with the most reuse of loaded elements whose grid has THREADS_PER_SM threads per SM.

        Raises UnsupportedProblem where the kernel's 32-bit indices cannot count the blocks or a plane.
        """
        require_dense(problem, self.name)
        images, filters = _pass(problem)
        for rows, dots in REUSE:
            threads = _threads(images * problem.out_pixels, dots)
            blocks = _blocks(problem, images, filters, rows, dots, threads)
            if rows <= filters and blocks * threads >= THREADS_PER_SM * device.sm_count:
                break
        check_sizes(problem, self.name, [("passes", _passes(problem, images, filters), MAX_PASSES)])
        sum_blocks = 0 if problem.filter_area == 1 else ceil(images * filters * problem.out_pixels / MAX_THREADS)
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
            filters_per_pass=filters,
            blocks=blocks,
            sum_blocks=sum_blocks,
            workspace_bytes=images * filters * _planes_bytes(problem) if sum_blocks else 0,
        )


def _macros(rows: int, dots: int) -> Macros:
    """The kernel variant for filter rows of a block and output pixels of a thread."""
    return {"ROWS": rows, "DOTS": dots, "LOADS": LOADS}


def _pass(problem: ConvProblem) -> tuple[int, int]:
    """The images and filters of a pass: the most that keep its planes within PLANES_BYTES, and at least one of each.

    A filter row's dot products stay within MAX_INDEX. The filters are divided where the planes of one image are larger.
    """
    if problem.out_pixels > MAX_INDEX or problem.h * problem.w > MAX_INDEX:
        raise UnsupportedProblem(
            f"{problem.label}: a plane of more than {MAX_INDEX} elements is beyond two_stage: split it into tiles"
        )
    images = min(problem.n, MAX_INDEX // problem.out_pixels)
    if problem.filter_area > 1:
        filters = PLANES_BYTES // _planes_bytes(problem)
        if filters < problem.m:
            return 1, max(1, filters)
        images = min(images, filters // problem.m)
    return images, problem.m


def _passes(problem: ConvProblem, images: int, filters: int) -> int:
    """The number of passes, each over a number of images and filters."""
    return ceil(problem.n / images) * ceil(problem.m / filters)


def _planes_bytes(problem: ConvProblem) -> int:
    """The bytes of the temporary planes of an image and a filter: KH * KW planes."""
    return FLOAT_BYTES * problem.filter_area * problem.out_pixels


def _threads(dots_per_row: int, dots: int) -> int:
    """The threads of a block: whole warps, no more than a filter row's dot products need."""
    return min(MAX_THREADS // dots, WARP * ceil(dots_per_row / (WARP * dots)))


def _blocks(problem: ConvProblem, images: int, filters: int, rows: int, dots: int, threads: int) -> int:
    """The grid of stage one: groups of filter rows times groups of output pixels."""
    row_groups = ceil(filters / rows) * problem.filter_area
    return row_groups * ceil(images * problem.out_pixels / (threads * dots))
