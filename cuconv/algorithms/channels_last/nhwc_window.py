"""Convolution of few channels by filters of several positions, in half precision and channels last.

It multiplies windows (`windows.py`) of whole pixels, which all positions of a filter read. `nhwc_window.cu` has the
kernel. If channels are no multiple of 8, a kernel that runs first pads them (`pad_channels.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last.channels_last import (
    BARRIER_BYTES,
    BF16_MACRO,
    VECTOR_BYTES,
    WARPGROUP_PIXELS,
    type_macro,
)
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS, Copies, Operands, PadsChannels, padded
from cuconv.algorithms.channels_last.windows import (
    COLUMNS,
    FILTERS,
    Config,
    MultipliesWindows,
    Tile,
    bias_bytes,
    common_sizes,
    last_arguments,
    tile_arguments,
    write_us,
)
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_BOX, MAX_EXTENT, check_sizes
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import BIAS, OUTPUT, RESIDUAL, Address, Argument, Launch, TensorMap
from cuconv.core.problem import HALF_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

SWIZZLED_OCTETS = 8  # up to so many octets, a pixel uses a swizzle or needs none; above, octets must be odd in number
MAX_OCTETS = 15
ROW_BYTES, ROW_ELEMENTS = 128, 64  # a row of a weight box, whose swizzle is as wide
PLACE_BYTES = 4  # an entry of the table: the place of an octet in the window
SWIZZLES = (0, 32, 64, 128)  # bytes of a pixel whose windows have a swizzle; 0 for all others
STAGE_ALIGNMENT = 1024  # bytes, after which every swizzle repeats


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without its tiles")
    weights: float = constant("an SM's time to copy 2**16 bytes of weights, ahead of the first tiles")
    copy: float = constant("the latency of the copy of a window")
    pixel: float = constant("an SM's time to copy 2**7 pixels of windows")
    box: float = constant("a warpgroup's latency of 64 elements of the reduction")
    end: float = constant("a warpgroup's latency from the last step to the outputs")
    read: float = constant("an SM's time to read 2**4 warpgroups' tiles A of 64 elements from windows")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    write: float = constant("an SM's time to write 2**12 outputs")
    write_narrow: float = constant("added to the writing of 2**12 outputs where a store has one")
    memory: float = constant("2**20 bytes of operands through device memory")


class NhwcWindow(MultipliesWindows[Costs], PadsChannels[Config, Costs]):
    """wgmma on the windows of few channels and large filters, in half precision and channels last."""

    source = Path(__file__).with_suffix(".cu")
    summary = "wgmma on windows of up to 120 channels, for larger filters than 1x1, channels last, in half precision."
    costs_type = Costs
    most_filters = 128

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper's instructions."""
        if arch != HOPPER_ARCH:
            return []
        choices = product(FILTERS, SWIZZLES, (0, 1))
        return [{"FILTERS": filters, "SWIZZLE": swizzle, BF16_MACRO: bf16} for filters, swizzle, bf16 in choices]

    def check(self, problem: ConvProblem) -> None:
        """Raise UnsupportedProblem for what the kernel does not compute."""
        p, octets = problem, _octets(problem)
        if p.groups > 1 or p.filter_area == 1 or not _is_supported(octets):
            raise UnsupportedProblem(
                f"{p.label}: nhwc_window computes up to {SWIZZLED_OCTETS * VECTOR_CHANNELS} channels, and up to "
                f"{MAX_OCTETS * VECTOR_CHANNELS} unless they are a multiple of {2 * VECTOR_CHANNELS}, in one group, "
                "with filters larger than 1x1"
            )
        narrow, low = (self.tile(p, WARPGROUP_PIXELS, columns) for columns in (COLUMNS[0], COLUMNS[-1]))
        sizes = [
            ("columns of eight pixels' window", narrow.window_elements // p.c, MAX_BOX),
            ("rows of the filter with its dilation", low.window_rows, MAX_BOX),
            ("columns of the padded image", p.padded_w, MAX_EXTENT),
            *common_sizes(p),
        ]
        check_sizes(p, "nhwc_window", sizes)

    def copies(self, problem: ConvProblem) -> Copies | None:
        """The copies with padded channels; None where the channels are a multiple of 8 already."""
        return padded(problem, _octets(problem)) if problem.c % VECTOR_CHANNELS else None

    def fitting(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """The configurations, of the padded problem where channels are padded: the checks so far saw the one given."""
        return PadsChannels.candidates(self, problem, device)

    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """The main kernel's configurations; raises UnsupportedProblem where padding has made sizes too large."""
        self.check(problem)
        return MultipliesWindows.fitting(self, problem, device)

    def tile(self, problem: ConvProblem, pixels: int, columns: int) -> Tile:
        """The tile of so many pixels and columns."""
        p, rows = problem, pixels // columns
        window_columns = (columns - 1) * p.stride_w + (p.kw - 1) * p.dilation_w + 1
        window_rows = (rows - 1) * p.stride_h + (p.kh - 1) * p.dilation_h + 1
        return Tile(rows, columns, window_rows, window_columns * p.c, STAGE_ALIGNMENT)

    def is_copied_at_once(self, problem: ConvProblem, tile: Tile) -> bool:
        """Whether the window of a tile is a box that a tensor map can copy."""
        return max(tile.window_rows, tile.window_elements // problem.c) <= MAX_BOX

    def fixed_bytes(self, problem: ConvProblem, filters: int) -> int:
        """Shared memory of a block for weights and their barriers, the table, bias and zeros, in bytes."""
        box_bytes = ROW_BYTES * filters + BARRIER_BYTES + PLACE_BYTES * (ROW_ELEMENTS // VECTOR_CHANNELS)
        return _boxes(problem) * box_bytes + bias_bytes(filters) + VECTOR_BYTES

    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        After the copies of the weights and the first windows these times overlap: the latency of a block's tiles, the
        other copies of an SM, what its warpgroups read from windows, the tensor cores with the writing of outputs, and
        device memory.
        """
        boxes, tile = _boxes(problem), config.tile
        blocks = ceil_div(config.blocks, device.sm_count)  # per SM
        tiles = config.turns * blocks
        window_us = costs.pixel * tile.window_rows * tile.window_elements / problem.c / 2**7
        weights_us = costs.weights * blocks * boxes * config.filters / 2**9
        first_us = costs.copy + blocks * window_us + weights_us
        waiting_us = costs.copy / config.stages if config.stages < config.turns else 0.0
        latency_us = config.turns * max(boxes * costs.box + costs.end, waiting_us)
        outputs = tiles * config.warpgroups * WARPGROUP_PIXELS * config.filters
        read_us = costs.read * tiles * config.warpgroups * boxes / 2**4
        write = write_us(problem, costs.write, costs.write_narrow)
        busy_us = costs.multiply * outputs * boxes * ROW_ELEMENTS / 2**20 + write * outputs / 2**12
        memory_us = costs.memory * problem.min_bytes / 2**20
        overlapping = latency_us, (tiles - blocks) * window_us, read_us, busy_us, memory_us
        return float(costs.start + first_us + norm(*overlapping))

    def main_launch(self, problem: ConvProblem, config: Config, options: CallOptions, operands: Operands) -> Launch:
        """The launch of the main kernel; operands: where it finds input and weight."""
        p, position = problem, problem.c // VECTOR_CHANNELS
        window = _window_map(p, config.tile, operands.input)
        weights = _weight_map(p, config.filters, operands.weight)
        arguments: tuple[Argument, ...] = (
            window, weights, BIAS, RESIDUAL, OUTPUT,
            options.output_planes(p), p.m, p.c, p.out_h, p.out_w, p.pad_h, p.pad_w, p.stride_h, p.stride_w,
            p.dilation_h, p.dilation_w, p.filter_area * position, p.kw * position, packed_divisor(p.kw * position),
            position, packed_divisor(position), *tile_arguments(p, config), *last_arguments(p, options),
        )  # fmt: skip
        macros = {"FILTERS": config.filters, "SWIZZLE": _swizzle(p)} | type_macro(p)
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=options.overlap)


def _octets(problem: ConvProblem) -> int:
    """The octets of a pixel in the windows, after padding. Padded pixels of more than 8 octets get an odd number."""
    octets = ceil_div(problem.c, VECTOR_CHANNELS)
    return octets + int(problem.c % VECTOR_CHANNELS > 0 and octets > SWIZZLED_OCTETS and octets % 2 == 0)


def _is_supported(octets: int) -> bool:
    """Whether windows of so many octets a pixel are computed: up to 8, or an odd number up to 15.

    Larger even numbers have bank conflicts.
    """
    return octets <= SWIZZLED_OCTETS or (octets <= MAX_OCTETS and octets % 2 == 1)


def _elements(problem: ConvProblem) -> int:
    """The products of an output."""
    return problem.filter_area * problem.c


def _boxes(problem: ConvProblem) -> int:
    """The boxes of 64 products of an output, the last of which is filled up with zeros."""
    return ceil_div(_elements(problem), ROW_ELEMENTS)


def _swizzle(problem: ConvProblem) -> int:
    """The width of the swizzle of windows, without which pixels of these many bytes would lie in the same banks."""
    pixel_bytes = HALF_BYTES * problem.c
    return pixel_bytes if pixel_bytes in SWIZZLES else 0


def _window_map(problem: ConvProblem, tile: Tile, address: Address) -> TensorMap:
    """The map by which a tile's window is copied."""
    p, pixel = problem, HALF_BYTES * problem.c
    box = p.c, tile.window_elements // p.c, tile.window_rows, 1
    strides = pixel, pixel * p.w, pixel * p.w * p.h
    return TensorMap(address, p.precision, (p.c, p.w, p.h, p.n), strides, box, _swizzle(p))


def _weight_map(problem: ConvProblem, filters: int, address: Address) -> TensorMap:
    """The map by which 64 elements of a block's filters are copied."""
    elements = _elements(problem)
    box = ROW_ELEMENTS, filters
    return TensorMap(address, problem.precision, (elements, problem.m), (HALF_BYTES * elements,), box, ROW_BYTES)
