"""Depthwise convolution in half precision and channels last: plain FP32 sums, eight channels a thread.

A thread computes a strip of neighbouring output pixels, and a block strips of the same channels, whose weights it keeps
in shared memory. `nhwc_depthwise.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last.channels_last import BF16_MACRO, InHalf
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_hopper
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import BIAS, INPUT, OUTPUT, RESIDUAL, WEIGHT, Launch
from cuconv.core.problem import BF16, FLOAT_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

MAX_EXTENT = 2**30  # rows or columns of the padded image
MAX_WEIGHT_BYTES = 48 * 1024  # a block keeps no more weights in shared memory
MAX_VECTORS = 8  # a block computes no more of a pixel: they are a cache line
THREADS = (64, 128, 256)
SM_THREADS, SM_REGISTERS = 2048, 2**16


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds of what each says."""

    start: float = constant("a launch, and a block from start to end, without its strips")
    stage: float = constant("a block's time to read 2**4 weights a thread")
    row: float = constant("a thread's latency of a row of a strip's window")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    load: float = constant("an SM's time for 2**10 vectors that a warp's threads load")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Geometry:
    """A filter with dilation 1 that a kernel variant has as macros; all 0 for the variant of every geometry."""

    kernel_h: int = 0
    kernel_w: int = 0
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """The output pixels of a thread, and about how many registers it has by the compiler's report."""

    rows: int
    columns: int
    registers: int


ANY = Geometry()
STRIPS = {
    Geometry(3, 3, 1): (Strip(1, 1, 64), Strip(1, 2, 80), Strip(1, 4, 128), Strip(2, 4, 184)),
    Geometry(3, 3, 2): (Strip(1, 1, 64), Strip(1, 2, 96), Strip(1, 4, 152)),
    Geometry(5, 5, 1): (Strip(1, 1, 80), Strip(1, 2, 112), Strip(1, 4, 152)),
    Geometry(5, 5, 2): (Strip(1, 1, 80), Strip(1, 2, 120), Strip(1, 4, 200)),
    Geometry(7, 7, 1): (Strip(1, 1, 80), Strip(1, 2, 120), Strip(1, 4, 152)),
    ANY: (Strip(1, 1, 72), Strip(1, 4, 104)),
}


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the strip, and what a block computes at a time: vectors of channels by positions."""

    strip: Strip
    threads: int
    vectors: int
    channel_blocks: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    @property
    def positions(self) -> int:
        """The strips that a block computes at a time."""
        return self.threads // self.vectors

    def __str__(self) -> str:
        return f"strip={self.strip.rows}x{self.strip.columns} threads={self.threads} grid={self.blocks}"


class NhwcDepthwise(InHalf[Config, Costs]):
    """Plain FP32 sums of depthwise layers in half precision and channels last."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Plain FP32 sums of depthwise layers in half precision and channels last."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper, for which alone they are written."""
        if arch != HOPPER_ARCH:
            return []
        forms = [(geometry, strip) for geometry, strips in STRIPS.items() for strip in strips]
        return [_macros(*form) | {BF16_MACRO: bf16} for form, bf16 in product(forms, (0, 1))]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every strip with every number of threads; raises UnsupportedProblem where there is none."""
        require_hopper(problem, device)
        _check(problem)
        return [_config(problem, device, *form) for form in product(STRIPS[_geometry_of(problem)], THREADS)]

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Three times overlap: the latency of a thread's strips, one after the other; the instructions of an SM; and
        device memory.
        """
        p, strip = problem, config.strip
        blocks_of_channels = config.blocks // config.channel_blocks
        rounds = ceil_div(_strips(p, strip), config.positions * blocks_of_channels)
        weights = VECTOR_CHANNELS * config.vectors * p.filter_area
        rows, columns = ((n - 1) * s + k for n, s, k in _window(p, strip))
        window = strip.columns * p.filter_area * strip.rows if _geometry_of(p) == ANY else rows * columns
        latency_us = costs.stage * weights / config.threads / 2**4 + rounds * rows * costs.row
        blocks = ceil_div(config.blocks, device.sm_count)
        waves = max(1.0, blocks / _resident(config))
        warps = blocks * rounds * config.threads / 32
        multiply_us = costs.multiply * strip.rows * strip.columns * p.filter_area * VECTOR_CHANNELS * 32 / 2**16
        issue_us = warps * (multiply_us + costs.load * window / 2**10)
        return float(costs.start + norm(waves * latency_us, issue_us, costs.memory * p.min_bytes / 2**20))

    def summation(self, config: Config) -> Hashable:
        """An empty tuple: each sum is one chain in the order of the filter positions."""
        return ()

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which waits for the kernel ahead itself."""
        p, strip = problem, config.strip
        down, along = ceil_div(p.out_h, strip.rows), ceil_div(p.out_w, strip.columns)
        whole = options.aligned and options.output_planes(p) % VECTOR_CHANNELS == 0
        arguments = (
            INPUT, WEIGHT, BIAS, RESIDUAL, OUTPUT, options.output_planes(p), p.c, p.h, p.w, p.out_h, p.out_w,
            p.pad_h, p.pad_w, p.kh, p.kw, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, _strips(p, strip),
            down, packed_divisor(down), along, packed_divisor(along), config.vectors, packed_divisor(config.vectors),
            config.positions, config.channel_blocks, packed_divisor(config.channel_blocks),
            *options.activation_arguments, int(whole), int(options.packed),
        )  # fmt: skip
        macros = _macros(_geometry_of(p), strip) | {BF16_MACRO: int(p.precision == BF16)}
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return (Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=options.overlap),)


def _geometry_of(problem: ConvProblem) -> Geometry:
    """The geometry whose variants compute a problem."""
    p = problem
    found = Geometry(p.kh, p.kw, p.stride_h)
    return found if found in STRIPS and p.stride_h == p.stride_w and p.dilation_h == p.dilation_w == 1 else ANY


def _macros(geometry: Geometry, strip: Strip) -> Macros:
    """The macros of a kernel variant, without that of the element."""
    return {
        "KERNEL_H": geometry.kernel_h,
        "KERNEL_W": geometry.kernel_w,
        "STRIDE": geometry.stride,
        "ROWS": strip.rows,
        "COLUMNS": strip.columns,
    }


def _window(problem: ConvProblem, strip: Strip) -> tuple[tuple[int, int, int], ...]:
    """A strip's pixels, the stride and the filter's size on each axis."""
    p = problem
    return (strip.rows, p.stride_h, p.kh), (strip.columns, p.stride_w, p.kw)


def _strips(problem: ConvProblem, strip: Strip) -> int:
    """The strips of an output."""
    return problem.n * ceil_div(problem.out_h, strip.rows) * ceil_div(problem.out_w, strip.columns)


def _resident(config: Config) -> int:
    """The blocks that an SM holds at a time."""
    return max(1, min(SM_THREADS, SM_REGISTERS // config.strip.registers) // config.threads)


def _config(problem: ConvProblem, device: DeviceSpec, strip: Strip, threads: int) -> Config:
    """As many blocks as the SMs hold, or as there are strips."""
    all_vectors, weight_bytes = problem.c // VECTOR_CHANNELS, FLOAT_BYTES * VECTOR_CHANNELS * problem.filter_area
    most = max(1, min(MAX_VECTORS, MAX_WEIGHT_BYTES // weight_bytes))
    channel_blocks = ceil_div(all_vectors, most)
    vectors = ceil_div(all_vectors, channel_blocks)
    alone = Config(strip, threads, vectors, channel_blocks, channel_blocks, vectors * weight_bytes)
    needed = ceil_div(_strips(problem, strip), alone.positions)
    held = max(1, device.sm_count * _resident(alone) // channel_blocks)
    return Config(strip, threads, vectors, channel_blocks, channel_blocks * min(needed, held), alone.shared_bytes)


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute."""
    p = problem
    if p.groups == 1 or p.group_channels > 1 or p.group_filters > 1 or p.c % VECTOR_CHANNELS:
        raise UnsupportedProblem(
            f"{p.label}: nhwc_depthwise computes layers with a filter for each channel, and a multiple of "
            f"{VECTOR_CHANNELS} channels"
        )
    sizes = [
        ("filter positions", p.filter_area, MAX_WEIGHT_BYTES // (FLOAT_BYTES * VECTOR_CHANNELS)),
        ("output pixels", p.n * p.out_pixels, MAX_INDEX // 2),
        ("rows of the padded image", p.h + 2 * p.pad_h, MAX_EXTENT),
        ("columns of the padded image", p.w + 2 * p.pad_w, MAX_EXTENT),
        ("channels", p.c, MAX_INDEX // 2),
    ]
    check_sizes(p, "nhwc_depthwise", sizes)
