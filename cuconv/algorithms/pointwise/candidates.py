"""The launch configurations of fp16x3_pointwise that can run a problem.

A tile shape is a combination of filters, channels, consumers and pixel layout. Each shape gets as many pixel stages as
shared memory holds, with resident weights and without; a configuration may then pack its weights in the block, or split
the tiles of its last wave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, hypot
from typing import Any, NamedTuple

import numpy as np

from cuconv.algorithms.common.implicit_gemm import PRODUCTS, is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes, require_dense, require_hopper
from cuconv.algorithms.common.weight_packing import WeightPacking
from cuconv.algorithms.pointwise.cost_model import Costs, LayerTimes, layer_times, size_us
from cuconv.algorithms.pointwise.registers import CHANNELS, CONSUMERS, holds_packed_weights, most_filters
from cuconv.algorithms.pointwise.tiles import (
    MAX_PIXEL_STAGES,
    VECTOR,
    WARPGROUP_PIXELS,
    Fp16x3PointwiseConfig,
    PixelLayout,
    epilogue_bytes,
    filter_tile_count,
    iterations,
    pixel_stage_bytes,
    pixel_tile_count,
    static_shared_bytes,
    warpgroup_tile_count,
    weight_stage_bytes,
)
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

FILTERS_STEP = 16  # the filters of a tile are a multiple of it
FILTERS_LIMITS = (160, 128, 64)  # a tile has as many filters as fit below each
PACKING_FILTERS_LIMITS = (48, 32)  # the same, for blocks that pack their weights and for split last waves alone
EPILOGUE_FILTERS = (64, 32)
MIN_SHIFTED_PIXELS = 2 * WARPGROUP_PIXELS  # images with fewer take no shifted layout
MAX_SPLIT_TILES = 3  # for each SM, where consumers share tiles
MAX_TAIL_SPLIT_K = 4
MAX_WAVES_BEFORE_TAIL = 4  # after more waves, the last one does not count
FLAG_BYTES = 4


@dataclass(frozen=True, slots=True)
class _TileShape:
    filters: int
    channels: int
    consumers: int
    warpgroup_split_k: bool
    layout: PixelLayout


class _Layer(NamedTuple):
    """All that tiles and pipelines depend on. Layers of other sizes have most of it in common."""

    c: int
    m: int
    precision: str
    layouts: tuple[PixelLayout, ...]
    plane: int  # pixels of an image, where whole images are one of the layouts; else 0
    vector: bool  # whether planes are a multiple of four pixels
    shared_bytes: int  # the most of a block

    @property
    def products(self) -> int:
        """Tensor-core products for one FP32 product."""
        return PRODUCTS[self.precision]

    @property
    def smallest(self) -> ConvProblem:
        """One image of a size with these properties, for what does not depend on the size otherwise."""
        return ConvProblem(
            1, self.c, 1, self.plane or (VECTOR if self.vector else 1), self.m, 1, 1, 0, 0, self.precision
        )


class _Rows(NamedTuple):
    """Configurations of a layer as one of arrays, whose grids are not known yet.

    split, shared: whether the last wave's tiles are split, and whether consumers share tiles.
    warpgroup_tiles, chunks: of a tile, the second those of one consumer. filter_tiles: of the layer.
    published_bytes: of a block that shares a tile, in the workspace.
    """

    configs: Fp16x3PointwiseConfig
    split: Any
    shared: Any
    warpgroup_tiles: Any
    filter_tiles: Any
    chunks: Any
    published_bytes: Any


class Many(NamedTuple):
    """One configuration object with array fields, which of its configurations can run, and the tiles of each.

    pixel_tiles, filter_tiles: the tiles with the same filters, and with the same pixels.
    """

    configs: Fp16x3PointwiseConfig
    possible: Any
    pixel_tiles: Any
    filter_tiles: Any


def many(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> Many:
    """Every configuration for a problem; raises UnsupportedProblem where none can run.

    algorithm: its name. Split-K across the consumers is for grids with few tiles. Split-K in the last wave is for waves
    that leave half of the SMs idle, and that are not the only one: all parts of a tile would end together then, and
    wait for each other.
    """
    layouts = _check(problem, device, algorithm)
    rows = _rows(_layer(problem, layouts, device))
    configs, sms = rows.configs, device.sm_count
    pixel_tiles = pixel_tile_count(problem, rows.warpgroup_tiles, configs.layout)
    tiles = pixel_tiles * rows.filter_tiles
    blocks, waves = np.minimum(sms, tiles), tiles // sms
    rest = tiles - waves * sms
    some_idle = (rest > 0) & (2 * rest <= sms) & (waves >= 1) & (waves <= MAX_WAVES_BEFORE_TAIL)
    possible = (tiles <= MAX_SPLIT_TILES * sms) >= rows.shared
    if np.any(some_idle & rows.split):
        parts = np.minimum(np.minimum(sms // np.maximum(rest, 1), rows.chunks), MAX_TAIL_SPLIT_K)
        possible &= (some_idle & (parts > 1)) >= rows.split
        tail_split_k: Any = np.where(rows.split, parts, 1)
        workspace_bytes = configs.workspace_bytes + blocks * rows.published_bytes
    else:
        possible &= ~rows.split
        tail_split_k, workspace_bytes = 1, configs.workspace_bytes
    found = replace(configs, tail_split_k=tail_split_k, blocks=blocks, workspace_bytes=workspace_bytes)
    return Many(found, possible, pixel_tiles, rows.filter_tiles)


def times_us(problem: ConvProblem, device: DeviceSpec, found: Many, costs: Costs, prepared: bool) -> Any:
    """The predicted times of configurations that `many` made for the same problem, in microseconds.

    They are those of `cost_model.estimate_us`, of which a layer keeps what does not depend on the image's size.
    """
    times = _times(_layer(problem, tuple(pixel_layouts(problem)), device), costs)
    us = size_us(problem, found.configs, found.pixel_tiles, found.filter_tiles, times, costs)
    return us - times.pack if prepared else us


def least_us(problem: ConvProblem, device: DeviceSpec, costs: Costs, prepared: bool) -> float:
    """A bound of the predicted times for a 1x1 filter, in microseconds.

    The latency of a tile, or the SMs' work for all tiles, in a norm with the operands in device memory.
    """
    p, layer = problem, _layer(problem, tuple(pixel_layouts(problem)), device)
    start_us, latency_us, pixel_us = _least_work(layer, device.sm_count, costs, prepared)
    work_us = max(latency_us, start_us + pixel_us * p.n * p.out_pixels)
    memory_us = costs.memory * p.min_bytes / 2**20
    return max(start_us + memory_us, hypot(work_us, memory_us))


def _layer(problem: ConvProblem, layouts: tuple[PixelLayout, ...], device: DeviceSpec) -> _Layer:
    pixels = problem.out_pixels
    plane = pixels if PixelLayout.WHOLE_IMAGES in layouts else 0
    sizes = (problem.c, problem.m, problem.precision, layouts, plane, pixels % VECTOR == 0)
    return _Layer(*sizes, device.shared_bytes_per_block)


@lru_cache(maxsize=4096)
def _times(layer: _Layer, costs: Costs) -> LayerTimes:
    return layer_times(layer.smallest, _rows(layer).configs, costs)


@lru_cache(maxsize=1024)
def _least_work(layer: _Layer, sms: int, costs: Costs, prepared: bool) -> tuple[float, float, float]:
    """The least time of the launches, of them and a tile, and of the busiest SM for each pixel, in microseconds.

    They are the model's terms for tiles that need not fit: to make the rows takes milliseconds.
    """
    c, example = _ideal_tiles(layer), layer._replace(vector=True).smallest  # its pixels are copied four at a time
    times = layer_times(example, c, costs)
    start_us = times.start + times.pack_in_block - (times.pack if prepared else 0.0)
    tile_us = start_us + times.chunks * times.chunk + times.write
    pixel_us = filter_tile_count(example, c.filters) * times.chunks * times.sm_chunk / c.pixels / sms
    return float(start_us.min()), float(tile_us.min()), float(pixel_us.min())


def _ideal_tiles(layer: _Layer) -> Fp16x3PointwiseConfig:
    """Every tile shape as arrays, with resident weights and the most stages, as if shared memory held them.

    The layout is the one that costs least. Each shape is there without and, where registers hold the weights that a
    block packs itself, with such blocks.
    """
    shapes: list[tuple[int, ...]] = []
    every = tile_filters(layer.m, (*FILTERS_LIMITS, *PACKING_FILTERS_LIMITS))
    for filters, channels, consumers in product(every, chunk_channels(layer.c), CONSUMERS):
        chunks = ceil(layer.c / channels)
        packing = (False, True) if holds_packed_weights(filters, channels, chunks, consumers) else (False,)
        shapes += product((filters,), (channels,), (consumers,), (False, True), (chunks,), packing)
    columns: list[Any] = list(np.array(shapes).T)
    return Fp16x3PointwiseConfig(
        filters=columns[0],
        channels=columns[1],
        consumers=columns[2],
        warpgroup_split_k=columns[3],
        pixel_stages=MAX_PIXEL_STAGES,
        weight_stages=columns[4],
        weights_resident=True,
        packs_weights=columns[5],
        tail_split_k=1,
        epilogue_filters=min(EPILOGUE_FILTERS),
        layout=PixelLayout.WHOLE_IMAGES if layer.plane else PixelLayout.PLAIN,
        blocks=0,
        shared_bytes=0,
        workspace_bytes=0,
        products=layer.products,
    )


@lru_cache(maxsize=4096)
def _rows(layer: _Layer) -> _Rows:
    """Every tile shape with its pipelines, also with blocks that pack their weights, and with a split last wave."""
    usual = tile_filters(layer.m, FILTERS_LIMITS)
    every = dict.fromkeys((*usual, *tile_filters(layer.m, PACKING_FILTERS_LIMITS)))
    shapes = product(every, chunk_channels(layer.c), CONSUMERS, (False, True), layer.layouts)
    found: list[tuple[Fp16x3PointwiseConfig, bool]] = []
    for shape in (_TileShape(*sizes) for sizes in shapes):
        pipelines = _pipelines(layer, shape)
        if shape.filters in usual:
            found += [(config, False) for config in pipelines]
        found += [(_packing_weights(config), False) for config in pipelines if _can_pack_weights(config)]
        found += [(c, True) for c in pipelines if not c.weights_resident and not c.warpgroup_split_k]
    columns: list[Any] = [np.array(column) for column in zip(*(astuple(config) for config, _ in found), strict=True)]
    configs, split = replace(Fp16x3PointwiseConfig(*columns), products=layer.products), np.array([s for _, s in found])
    example = layer.smallest
    return _Rows(
        configs,
        split,
        shared=configs.warpgroup_split_k > 0,
        warpgroup_tiles=configs.warpgroup_tiles,
        filter_tiles=filter_tile_count(example, configs.filters),
        chunks=iterations(example, configs),
        published_bytes=split * configs.consumers * (FLOAT_BYTES * WARPGROUP_PIXELS * configs.filters + FLAG_BYTES),
    )


def pixel_layouts(problem: ConvProblem) -> list[PixelLayout]:
    """The plain layout, and the others that exist for planes that are no multiple of four pixels."""
    found = [PixelLayout.PLAIN]
    if problem.out_pixels % VECTOR == 0:
        return found
    if problem.out_pixels >= MIN_SHIFTED_PIXELS:
        found += [PixelLayout.SHIFTED_8, PixelLayout.SHIFTED_4]
    # Channels and filters in multiples of four: each chunk and each tile then begins at a multiple of 16 bytes.
    whole = problem.c % VECTOR == 0 and problem.m % VECTOR == 0
    if WARPGROUP_PIXELS // 2 < problem.out_pixels <= WARPGROUP_PIXELS and whole:
        found.append(PixelLayout.WHOLE_IMAGES)
    return found


def tile_filters(filters: int, limits: Iterable[int]) -> list[int]:
    """The filters of a tile, for each limit: as few tiles as the limit allows, all of the same size."""
    found = []
    for limit in limits:
        tiles = ceil(filters / limit)
        found.append(FILTERS_STEP * ceil(filters / tiles / FILTERS_STEP))
    return list(dict.fromkeys(found))


def chunk_channels(channels: int) -> list[int]:
    """The channels of a chunk: the largest two of those that pad the least, within a tenth."""
    padded = {size: size * ceil(channels / size) for size in CHANNELS}
    least = min(padded.values())
    return [size for size in CHANNELS if padded[size] <= 1.1 * least][-2:]


def _check(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> tuple[PixelLayout, ...]:
    """The pixel layouts; raises UnsupportedProblem for another GPU or filter, and for what 32-bit integers exclude."""
    p = problem
    require_hopper(p, device)
    require_dense(p, algorithm)
    if not is_pointwise(p):
        raise UnsupportedProblem(f"{p.label}: {algorithm} is for filters of 1x1 without padding")
    layouts = tuple(pixel_layouts(p))
    warpgroup_tiles = max(warpgroup_tile_count(p, layout) for layout in layouts)
    sizes = [
        ("pixels in the batch", p.n * p.out_pixels, MAX_INDEX - 2**10),  # with room for a tile
        ("bytes in a plane", FLOAT_BYTES * p.out_pixels, MAX_INDEX),
        ("tiles", warpgroup_tiles * ceil(p.m / FILTERS_STEP), MAX_INDEX),
        ("weights", p.m * p.c, MAX_INDEX),
    ]
    check_sizes(p, algorithm, sizes)
    return layouts


def _pipelines(layer: _Layer, shape: _TileShape) -> list[Fp16x3PointwiseConfig]:
    """The shape's pipelines with resident weights and without.

    Where resident weights leave room for three pixel stages, there is no pipeline that loads weights again for each
    tile.
    """
    if shape.warpgroup_split_k and ceil(layer.c / shape.channels) < 2 * shape.consumers:
        return []
    found = [_pipeline(layer, shape, resident=True)]
    if _most_stages(layer, shape, True, min(EPILOGUE_FILTERS)) < 3:
        found.append(_pipeline(layer, shape, resident=False))
    return [config for config in found if config is not None]


def _pipeline(layer: _Layer, shape: _TileShape, resident: bool) -> Fp16x3PointwiseConfig | None:
    """The shape's pipeline with the most pixel stages, or None where registers or shared memory do not hold it."""
    s, products, chunks = shape, layer.products, ceil(layer.c / shape.channels)
    stages = _most_stages(layer, s, resident, min(EPILOGUE_FILTERS))
    # With weights that come along, two stages lose to every other pipeline, unless consumers share the chunks.
    least_stages = 2 if resident or s.warpgroup_split_k else 3
    single_chunk = resident and chunks == 1
    if stages < least_stages or s.filters > most_filters(s.consumers, s.channels, products, single_chunk, s.layout):
        return None
    epilogue_filters = max(
        filters for filters in EPILOGUE_FILTERS if _most_stages(layer, s, resident, filters) == stages
    )
    weight_stages = chunks if resident else stages * (s.consumers if s.warpgroup_split_k else 1)
    plane = _plane(layer, s)
    packing = WeightPacking(s.filters, s.channels, products)
    return Fp16x3PointwiseConfig(
        s.filters,
        s.channels,
        s.consumers,
        s.warpgroup_split_k,
        pixel_stages=stages,
        weight_stages=weight_stages,
        weights_resident=resident,
        packs_weights=False,
        tail_split_k=1,
        epilogue_filters=epilogue_filters,
        layout=s.layout,
        blocks=0,
        shared_bytes=stages * pixel_stage_bytes(s.channels, s.consumers, plane)
        + weight_stages * weight_stage_bytes(s.filters, s.channels, products)
        + epilogue_bytes(epilogue_filters, s.consumers, plane),
        workspace_bytes=packing.workspace_bytes(ConvProblem(1, layer.c, 1, 1, layer.m, 1, 1)),
        products=products,
    )


def _most_stages(layer: _Layer, shape: _TileShape, resident: bool, epilogue_filters: int) -> int:
    """The pixel stages that fit into shared memory with the weights and the epilogue."""
    s, plane = shape, _plane(layer, shape)
    resident_chunks = ceil(layer.c / s.channels) if resident else 0
    weight_bytes = weight_stage_bytes(s.filters, s.channels, layer.products)
    room = layer.shared_bytes - static_shared_bytes(s.consumers, resident_chunks)
    room -= epilogue_bytes(epilogue_filters, s.consumers, plane) + resident_chunks * weight_bytes
    stage_bytes = pixel_stage_bytes(s.channels, s.consumers, plane)
    if not resident:  # each pixel stage has a weight stage, and with split-K each consumer has its own
        stage_bytes += weight_bytes * (s.consumers if s.warpgroup_split_k else 1)
    return min(MAX_PIXEL_STAGES, room // stage_bytes)


def _plane(layer: _Layer, shape: _TileShape) -> int:
    return layer.plane if shape.layout is PixelLayout.WHOLE_IMAGES else 0


def _can_pack_weights(c: Fp16x3PointwiseConfig) -> bool:
    return c.weights_resident and holds_packed_weights(c.filters, c.channels, c.weight_stages, c.consumers)


def _packing_weights(config: Fp16x3PointwiseConfig) -> Fp16x3PointwiseConfig:
    """Return a configuration whose block packs its weights itself, which needs no workspace."""
    return replace(config, packs_weights=True, workspace_bytes=0)
