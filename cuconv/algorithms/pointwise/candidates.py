"""The launch configurations of fp16x3_pointwise that can run a problem.

A tile shape is a combination of filters, channels, consumers and pixel layout. Each shape gets as many pixel stages as
shared memory holds, with resident weights and without; a configuration may then pack its weights in the block, or split
the tiles of its last wave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from cuconv.algorithms.common.implicit_gemm import PRODUCTS, is_pointwise
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes, require_dense, require_hopper
from cuconv.algorithms.common.weight_packing import WeightPacking
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
    plane_of,
    static_shared_bytes,
    tile_count,
    warpgroup_tile_count,
    weight_stage_bytes,
)
from cuconv.device import DeviceSpec
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

FILTERS_STEP = 16  # the filters of a tile are a multiple of it
FILTERS_LIMITS = (160, 128, 64)  # a tile has as many filters as fit below each
PACKING_FILTERS_LIMITS = (48, 32)  # the same, for blocks that pack their weights and for split last waves alone
EPILOGUE_FILTERS = (64, 32)
MIN_SHIFTED_PIXELS = 2 * WARPGROUP_PIXELS  # of an image, for the shifted layouts
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


def candidates(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> list[Fp16x3PointwiseConfig]:
    """Every configuration that can run; raises UnsupportedProblem where there is none. algorithm: its name."""
    _check(problem, device, algorithm)
    usual = tile_filters(problem.m, FILTERS_LIMITS)
    every = dict.fromkeys((*usual, *tile_filters(problem.m, PACKING_FILTERS_LIMITS)))
    shapes = product(every, chunk_channels(problem.c), CONSUMERS, (False, True), pixel_layouts(problem))
    found = []
    for shape in (_TileShape(*sizes) for sizes in shapes):
        pipelines = _pipelines(problem, device, shape)
        if shape.filters in usual:
            found += pipelines
        found += [_packing_weights(config) for config in pipelines if _can_pack_weights(config)]
        found += [split for config in pipelines for split in _with_tail_split_k(problem, device, config)]
    return found


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


def _check(problem: ConvProblem, device: DeviceSpec, algorithm: str) -> None:
    """Raise UnsupportedProblem for another architecture or filter, and where the kernel's integers do not suffice."""
    p = problem
    require_hopper(p, device)
    require_dense(p, algorithm)
    if not is_pointwise(p):
        raise UnsupportedProblem(f"{p.label}: {algorithm} is for filters of 1x1 without padding")
    warpgroup_tiles = max(warpgroup_tile_count(p, layout) for layout in pixel_layouts(p))
    sizes = [
        ("pixels in the batch", p.n * p.out_pixels, MAX_INDEX - 2**10),  # with room for a tile
        ("bytes in a plane", FLOAT_BYTES * p.out_pixels, MAX_INDEX),
        ("tiles", warpgroup_tiles * ceil(p.m / FILTERS_STEP), MAX_INDEX),
        ("weights", p.m * p.c, MAX_INDEX),
    ]
    check_sizes(p, algorithm, sizes)


def _pipelines(problem: ConvProblem, device: DeviceSpec, shape: _TileShape) -> list[Fp16x3PointwiseConfig]:
    """The shape's pipelines with resident weights and without.

    Split-K across the consumers is for grids with few tiles. Where resident weights leave room for three pixel stages,
    there is no pipeline that loads weights again for each tile.
    """
    chunks = ceil(problem.c / shape.channels)
    pixel_tiles = pixel_tile_count(problem, 1 if shape.warpgroup_split_k else shape.consumers, shape.layout)
    tiles = pixel_tiles * filter_tile_count(problem, shape.filters)
    if shape.warpgroup_split_k and (chunks < 2 * shape.consumers or tiles > MAX_SPLIT_TILES * device.sm_count):
        return []
    found = [_pipeline(problem, device, shape, tiles, resident=True)]
    if _most_stages(problem, device, shape, True, min(EPILOGUE_FILTERS)) < 3:
        found.append(_pipeline(problem, device, shape, tiles, resident=False))
    return [config for config in found if config is not None]


def _pipeline(
    problem: ConvProblem, device: DeviceSpec, shape: _TileShape, tiles: int, resident: bool
) -> Fp16x3PointwiseConfig | None:
    """The shape's pipeline with the most pixel stages, or None where registers or shared memory do not hold it."""
    s, products, chunks = shape, PRODUCTS[problem.precision], ceil(problem.c / shape.channels)
    stages = _most_stages(problem, device, s, resident, min(EPILOGUE_FILTERS))
    # With weights that come along, two stages lose to every other pipeline, unless consumers share the chunks.
    least_stages = 2 if resident or s.warpgroup_split_k else 3
    single_chunk = resident and chunks == 1
    if stages < least_stages or s.filters > most_filters(s.consumers, s.channels, products, single_chunk, s.layout):
        return None
    epilogue_filters = max(
        filters for filters in EPILOGUE_FILTERS if _most_stages(problem, device, s, resident, filters) == stages
    )
    weight_stages = chunks if resident else stages * (s.consumers if s.warpgroup_split_k else 1)
    plane = plane_of(problem, s.layout)
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
        blocks=min(device.sm_count, tiles),
        shared_bytes=stages * pixel_stage_bytes(s.channels, s.consumers, plane)
        + weight_stages * weight_stage_bytes(s.filters, s.channels, products)
        + epilogue_bytes(epilogue_filters, s.consumers, plane),
        workspace_bytes=WeightPacking(s.filters, s.channels, products).workspace_bytes(problem),
        products=products,
    )


def _most_stages(
    problem: ConvProblem, device: DeviceSpec, shape: _TileShape, resident: bool, epilogue_filters: int
) -> int:
    """The pixel stages that fit into shared memory beside the weights and the epilogue."""
    s, plane = shape, plane_of(problem, shape.layout)
    resident_chunks = ceil(problem.c / s.channels) if resident else 0
    weight_bytes = weight_stage_bytes(s.filters, s.channels, PRODUCTS[problem.precision])
    room = device.shared_bytes_per_block - static_shared_bytes(s.consumers, resident_chunks)
    room -= epilogue_bytes(epilogue_filters, s.consumers, plane) + resident_chunks * weight_bytes
    stage_bytes = pixel_stage_bytes(s.channels, s.consumers, plane)
    if not resident:  # each pixel stage has a weight stage, and with split-K each consumer has its own
        stage_bytes += weight_bytes * (s.consumers if s.warpgroup_split_k else 1)
    return min(MAX_PIXEL_STAGES, room // stage_bytes)


def _can_pack_weights(c: Fp16x3PointwiseConfig) -> bool:
    return c.weights_resident and holds_packed_weights(c.filters, c.channels, c.weight_stages, c.consumers)


def _packing_weights(config: Fp16x3PointwiseConfig) -> Fp16x3PointwiseConfig:
    """Return a configuration whose block packs its weights itself, which needs no workspace."""
    return replace(config, packs_weights=True, workspace_bytes=0)


def _with_tail_split_k(
    problem: ConvProblem, device: DeviceSpec, config: Fp16x3PointwiseConfig
) -> list[Fp16x3PointwiseConfig]:
    """Return a configuration with split-K in the last wave, if that wave leaves half of the SMs idle; else nothing.

    The last wave must not be the only one: all parts of a tile would end together then, and wait for each other.
    """
    c = config
    waves, tiles = divmod(tile_count(problem, c), device.sm_count)
    parts = min(device.sm_count // tiles, iterations(problem, c), MAX_TAIL_SPLIT_K) if tiles else 1
    if c.weights_resident or c.warpgroup_split_k or parts == 1 or not 1 <= waves <= MAX_WAVES_BEFORE_TAIL:
        return []
    published_bytes = c.blocks * c.consumers * (FLOAT_BYTES * WARPGROUP_PIXELS * c.filters + FLAG_BYTES)
    return [replace(c, tail_split_k=parts, workspace_bytes=c.workspace_bytes + published_bytes)]
