"""Grouped convolution with few channels a group, as plain FP32 sums: depthwise layers, and groups of up to 8 channels.

A thread computes a strip of neighbouring outputs and reads the input through the L1 cache. For small planes a block
may instead stage whole groups in shared memory: one batch of them or, with two buffers, batch after batch.
`depthwise.cu` has the kernel, docs/depthwise.md the design.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import MAX_EXTENT, MAX_INDEX, check_sizes
from cuconv.algorithms.common.many import ManyConfigurations
from cuconv.algorithms.depthwise.strips import (
    GENERAL_AT_ONCE,
    STRIPS,
    WARP,
    Geometry,
    Kind,
    Strip,
    Work,
    all_vectors,
    band_of,
    geometry_of,
    kind_of,
    vectors_of,
    work_of,
)
from cuconv.core.costs import constant
from cuconv.core.elementwise import Number, norm
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import BLOCKS_PER_SM, THREADS_PER_SM, DeviceSpec

MAX_CHANNELS = 8  # in groups of more, tensor cores are faster
MAX_FILTER_COLUMNS = 31  # sums of more products are long chains
MAX_STEP = 2**24  # rows or columns from one output, or filter position, to the next

THREADS = (64, 128, 256)
BUFFERS = (1, 2)
MAX_STAGED_BYTES = 48 * 1024  # a block stages no more, so that an SM holds several


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a thread from start to end, without loads and products")
    stage: float = constant("added where a block stages its planes in shared memory")
    switch: float = constant("a block's time to go to another batch of groups, with two buffers")
    load: float = constant("a thread's latency of 2**4 loads")
    chain: float = constant("a thread's latency of 2**8 multiply-adds")
    issue: float = constant("an SM's time to issue 2**10 loads of a warp")
    store: float = constant("an SM's time to issue 2**10 stores of a warp")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    fetch: float = constant("an SM's time for 2**10 cycles of loads from the L1 cache")
    fetch_staged: float = constant("an SM's time for 2**10 cycles of loads from shared memory")
    memory: float = constant("2**20 bytes of operands through device memory")
    memory_staged: float = constant("added for 2**20 bytes of operands where blocks stage their planes")
    memory_pieces: float = constant("added for 2**20 bytes of output that are not written in whole sectors")


@dataclass(frozen=True, slots=True)
class DepthwiseConfig:
    """A launch configuration: the strip of a thread, and the grid.

    groups: the groups that a block stages in shared memory at a time; 0 where threads read global memory.
    buffers: 2 where a block goes from batch to batch of such groups, and fetches one while it computes another.
    general: whether the kernel is the one for every geometry, since this one is not listed in STRIPS.
    overlap: whether the device lets the kernel start while the one ahead in the stream ends.
    """

    strip: Strip
    groups: int
    threads: int
    blocks: int
    shared_bytes: int
    overlap: bool
    buffers: int = 1
    general: bool = False
    workspace_bytes: int = 0

    def batches(self, problem: ConvProblem) -> Number:
        """The batches of groups that all blocks stage; the number of blocks where they stage none."""
        batches = ceil_div(problem.n * problem.groups, np.maximum(self.groups, 1))
        return np.where(self.groups > 0, batches, self.blocks)

    def __str__(self) -> str:
        strip = f"strip={self.strip.rows}x{self.strip.columns}x{self.strip.filters}"
        staged = f" groups={self.groups}" if self.groups else ""
        staged += f" buffers={self.buffers}" if self.buffers > 1 else ""
        staged += " general" if self.general else ""
        return f"{strip} threads={self.threads}{staged} grid={self.blocks} shared={self.shared_bytes}"


class Depthwise(ManyConfigurations[DepthwiseConfig, Costs]):
    """Plain FP32 sums of grouped layers with few channels a group, such as depthwise layers."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Plain FP32 sums of grouped layers with few channels a group, such as depthwise layers."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; they are the same for every architecture."""
        found = [_general_macros(rows) for rows in GENERAL_AT_ONCE]
        for geometry, strips in STRIPS.items():
            for strip, staged in strips:
                found += [_macros(geometry, strip, staged, *vectors) for vectors in all_vectors(geometry, strip)]
        return found

    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[DepthwiseConfig, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        Raises UnsupportedProblem where none can.
        """
        _check(problem)
        p, rows, quantum = problem, _rows(kind_of(problem)), _quantum(problem)
        strip, staged, threads = rows.strip, rows.staged, rows.threads
        strips = strip.count(p)
        groups = staged * _block_groups(p, strip, quantum, threads)
        shared_bytes = staged * _shared_bytes(p, groups, rows.buffers)
        blocks = np.where(staged, ceil_div(p.n * p.groups, np.maximum(groups, 1)), ceil_div(strips, threads))
        resident = device.sm_count * _resident_blocks(threads, rows.work.registers, shared_bytes, device)
        possible = (strips <= MAX_INDEX - max(THREADS)) & (shared_bytes <= MAX_STAGED_BYTES)
        possible &= (quantum <= p.groups) >= staged
        possible &= (resident < blocks) >= (rows.buffers > 1)
        if not possible.any():
            raise UnsupportedProblem(
                f"{p.label}: {p.n * p.m * p.out_pixels} outputs are too many for 32-bit numbers of strips, depthwise "
                "computes a smaller batch"
            )
        grid, overlap = np.where(rows.buffers > 1, resident, blocks), device.compute_capability >= (9, 0)
        sizes = (strip, groups, threads, grid, shared_bytes, overlap, rows.buffers, geometry_of(p) is None)
        return DepthwiseConfig(*sizes), possible

    def timed(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> tuple[DepthwiseConfig, Any, Any]:
        """The two results of `many`, and the predicted times, of which layers of a kind have the threads' work."""
        many, possible = self.many(problem, device)
        work, costs = _rows(kind_of(problem)).work, self.costs(problem.precision)
        return many, possible, _size_us(problem, device, many, work, costs)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: DepthwiseConfig, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants."""
        us: float = _size_us(problem, device, config, work_of(kind_of(problem), config.strip, config.groups > 0), costs)
        return us

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The time of the operands in device memory, in microseconds; inf without groups, and for large ones."""
        small = problem.groups > 1 and problem.group_channels <= MAX_CHANNELS
        return super().least_us(problem, device, prepared) if small else inf

    def summation(self, config: DepthwiseConfig) -> tuple[int, ...]:
        """An empty tuple: each sum is one chain in the order of channels and filter positions."""
        return ()

    def kernels(self, problem: ConvProblem, config: DepthwiseConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel; where it overlaps with the kernel ahead it waits for that itself."""
        p, strip = problem, config.strip
        down, along = strip.grid(p)
        divisors = (along, down, p.m // strip.filters, p.group_filters // strip.filters)
        sizes = (p.h, p.w, p.pad_h, p.pad_w, p.out_h, p.out_w, *options.activation_arguments, strip.units(p))
        packed = [number for divisor in divisors for number in (divisor, packed_divisor(divisor))]
        geometry, staged = geometry_of(p), config.groups > 0
        last: tuple[int, ...]
        if config.general:
            macros = _general_macros(strip.rows)
            last = (p.group_channels, p.kh, p.kw, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w)
        else:
            assert geometry is not None
            macros = _macros(geometry, strip, staged, *vectors_of(kind_of(p), strip, options.aligned or staged))
            last = (config.groups, int(config.batches(p)), config.buffers, int(options.aligned))
        arguments: tuple[Address | int, ...] = (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, *packed, *last)
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return (Launch(self.source, macros, self.name, *grid, arguments, shared, config.overlap),)


def _depth(problem: ConvProblem) -> int:
    """The products of an output."""
    return problem.group_channels * problem.filter_area


class _Rows(NamedTuple):
    """The configurations of layers of a kind as arrays, without what depends on sizes. staged: blocks stage planes."""

    strip: Strip
    staged: Any
    threads: Any
    buffers: Any
    work: Work


@lru_cache(maxsize=1024)
def _rows(kind: Kind) -> _Rows:
    """Every strip with every number of threads and buffers."""
    general = [(Strip(rows, 1, 1), False) for rows in GENERAL_AT_ONCE]
    strips = general if kind.geometry is None else STRIPS[kind.geometry]
    found = [
        (*astuple(strip), staged, threads, buffers, *work_of(kind, strip, staged))
        for (strip, staged), threads, buffers in product(strips, THREADS, BUFFERS)
        if buffers == 1 or staged
    ]
    columns: list[Any] = [np.array(column) for column in zip(*found, strict=True)]
    staged, threads, buffers, *work = columns[3:]
    return _Rows(Strip(*columns[:3]), staged, threads, buffers, Work(*work))


def _size_us(problem: ConvProblem, device: DeviceSpec, config: DepthwiseConfig, work: Work, costs: Costs) -> Number:
    """The predicted time in microseconds of configurations whose threads do such work.

    Four times overlap: a thread's latency, in as many waves as an SM needs for its blocks; the instructions that the SM
    issues; its cache; and device memory. Their norm goes from one to the other. The constants are those of kernels for
    listed geometries: what the general one loads and issues is of the same kinds.
    """
    strip, staged, weights = config.strip, config.groups > 0, config.strip.filters * _depth(problem)
    batches = config.batches(problem)
    strips_of_batch = ceil_div(strip.count(problem), batches)
    rounds = ceil_div(strips_of_batch, config.threads)
    blocks = ceil_div(batches, device.sm_count)  # an SM's blocks, or batches
    resident = _resident_blocks(config.threads, work.registers, config.shared_bytes, device)
    waves = np.maximum(1.0, blocks / resident)
    strip_us = costs.load * (work.windows + weights) / 2**4 + costs.chain * work.products / 2**8
    fetches = np.where(config.buffers > 1, 1, waves)  # fetches that nothing overlaps
    switches = (config.buffers > 1) * ceil_div(batches, config.blocks)
    latency_us = fetches * costs.stage * staged + switches * costs.switch + waves * rounds * strip_us
    warps = blocks * ceil_div(strips_of_batch, WARP)
    issue_us = (costs.issue * (work.windows + weights) + costs.store * work.stores) / 2**10
    issue_us = issue_us + costs.multiply * work.instructions * work.products * WARP / 2**16
    fetch_us = np.where(staged, costs.fetch_staged, costs.fetch) * work.windows * work.cycles / 2**10
    memory_us = (costs.memory + costs.memory_staged * staged) * problem.min_bytes / 2**20
    if problem.out_w % 8 > 0:  # a sector has eight outputs
        written_mib = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
        memory_us = memory_us + costs.memory_pieces * (config.groups == 0) * written_mib
    return costs.start + norm(latency_us, warps * issue_us, warps * fetch_us, memory_us)


def _quantum(problem: ConvProblem) -> int:
    """The least number of groups whose planes, read and written, are a multiple of 16 bytes."""
    p = problem
    sizes = (p.group_channels * p.h * p.w, p.group_filters * p.out_pixels)
    return next(groups for groups in (1, 2, 4) if all(groups * size % 4 == 0 for size in sizes))


def _block_groups(problem: ConvProblem, strip: Strip, quantum: int, threads: Number) -> Number:
    """The groups that a block stages, in whole quanta: about a strip for each thread.

    There are no more than an image has, since the weights of a block lie around the end of the weights at most once.
    """
    down, along = strip.grid(problem)
    strips = problem.group_filters // strip.filters * down * along * quantum
    return quantum * np.minimum(np.maximum(1, threads // strips), problem.groups // quantum)


def _shared_bytes(problem: ConvProblem, groups: Number, buffers: Number) -> Number:
    """The bytes of shared memory of a block that stages a number of groups: input, weights and output."""
    p = problem
    sizes = (p.group_channels * p.h * p.w, p.group_filters * _depth(p), p.group_filters * p.out_pixels)
    input, weights, output = (ceil_div(groups * size, 4) * 4 for size in sizes)
    return FLOAT_BYTES * (buffers * (input + weights) + output)


def _resident_blocks(threads: Number, registers: Number, shared_bytes: Number, device: DeviceSpec) -> Number:
    """The blocks that an SM holds at a time."""
    by_memory = device.resident_blocks(threads, registers, shared_bytes)
    return np.minimum(by_memory, np.minimum(THREADS_PER_SM // threads, BLOCKS_PER_SM))


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute, whatever the device."""
    p = problem
    if p.groups == 1:
        raise UnsupportedProblem(f"{p.label}: one group, depthwise computes two or more")
    sizes = [
        ("channels in a group", p.group_channels, MAX_CHANNELS),
        ("columns in a filter", p.kw, MAX_FILTER_COLUMNS),
        ("rows in a filter", p.kh, MAX_STEP),
        ("weights", p.m * _depth(p), MAX_INDEX),
        ("output planes", p.n * p.m, MAX_INDEX),
        ("input elements in a plane", p.h * p.w, MAX_INDEX),
        ("output elements in a plane", p.out_pixels, MAX_INDEX),
        ("rows in the padded image", p.padded_h, MAX_EXTENT),
        ("columns in the padded image", p.padded_w, MAX_EXTENT),
        ("rows of stride", p.stride_h, MAX_STEP),
        ("columns of stride", p.stride_w, MAX_STEP),
        ("rows of dilation", p.dilation_h, MAX_STEP),
        ("columns of dilation", p.dilation_w, MAX_STEP),
    ]
    check_sizes(p, "depthwise", sizes)


def _macros(geometry: Geometry, strip: Strip, staged: bool, vector: int, out_vector: int) -> Macros:
    """The macros of the kernel variant for a listed geometry."""
    return {
        "GENERAL": 0,
        "ROWS": strip.rows,
        "COLUMNS": strip.columns,
        "FILTERS": strip.filters,
        "GROUP_CHANNELS": geometry.group_channels,
        "KERNEL_H": geometry.kernel,
        "KERNEL_W": geometry.kernel,
        "BAND": band_of(geometry.kernel, geometry.kernel, strip.filters),
        "VECTOR": vector,
        "LEAD": -geometry.pad % vector,
        "OUT_VECTOR": out_vector,
        "STAGED": int(staged),
        "STRIDE_H": geometry.stride,
        "STRIDE_W": geometry.stride,
        "DILATION_H": 1,
        "DILATION_W": 1,
        "CHANNEL_GROUPS": 1,
    }


def _general_macros(rows: int) -> Macros:
    """The macros of the kernel variant for all other geometries, whose threads compute `rows` outputs."""
    return {"GENERAL": 1, "ROWS": rows, "AT_ONCE": GENERAL_AT_ONCE[rows]}
