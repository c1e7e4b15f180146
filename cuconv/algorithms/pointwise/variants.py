"""Forms of the fp16x3_pointwise kernel: their macros, which ones registers hold, and a sample of them."""

from __future__ import annotations

from enum import Enum
from itertools import product
from math import ceil

from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.problem import FP32, TF32


class Form(Enum):
    """Which pixels a team has; the value is what str(config) says of it."""

    PLAIN = ""  # those that follow each other through all images
    SHIFTED_8 = " shifted=8"  # of one image, where rows begin anywhere: sectors of the output, so that no two share one
    SHIFTED_4 = " shifted=4"  # the same, of four pixels: rows are more of their teams' own, so that there are fewer
    IMAGES = " images"  # a whole image

    @property
    def grain(self) -> int:
        """Floats of the output at whose multiples a team's pixels begin and end, where rows are shifted; else 0."""
        return {Form.SHIFTED_8: 8, Form.SHIFTED_4: 4}.get(self, 0)


SHIFTED = tuple(form for form in Form if form.grain)
TEAMS = (2, 3)  # of a block: warpgroups that multiply
CHANNELS = (16, 32, 48, 64)  # of a chunk

# The most filters of a tile by teams of a block and channels of a chunk: what the registers hold, and
# where they hold more: low parts take none with one product.
REGISTERS_HOLD = {2: {16: 160, 32: 160, 48: 160, 64: 144}, 3: {16: 96, 32: 80, 48: 80, 64: 64}}
MORE_IN_ONE_PRODUCT = {(2, 64): 160, (3, 64): 80}
# And fewer in other forms than the plain one, in any number of products.
LESS_SHIFTED = {(2, 48): 144, (2, 64): 128, (3, 48): 64}
LESS_IMAGES = {(2, 48): 144, (2, 64): 128}
# The same where all channels are one chunk, with weights that stay: its products are the sums.
SINGLE_HOLD = {2: {16: 160, 32: 160, 48: 160, 64: 160}, 3: {16: 160, 32: 160, 48: 160, 64: 128}}
LESS_SINGLE_SHIFTED = {(3, 48): 144}
LESS_SINGLE_IMAGES = {(3, 32): 144, (3, 48): 144}
OWN_HOLD = {2: 64, 3: 48}  # the most weights of a thread, by teams of a block, where it splits them itself


def most_filters(teams: int, channels: int, products: int, single: bool, form: Form) -> int:
    """Of a tile, what the registers hold. single: all channels are one chunk, with weights that stay."""
    most = SINGLE_HOLD[teams][channels] if single else REGISTERS_HOLD[teams][channels]
    if form.grain:
        return (LESS_SINGLE_SHIFTED if single else LESS_SHIFTED).get((teams, channels), most)
    if form is Form.IMAGES:
        return (LESS_SINGLE_IMAGES if single else LESS_IMAGES).get((teams, channels), most)
    if products != PRODUCTS[FP32] and not single:
        return MORE_IN_ONE_PRODUCT.get((teams, channels), most)
    return most


def own_weights(filters: int, channels: int, chunks: int, teams: int) -> int:
    """Of a thread, where the block splits them itself; jobs of a warp as in fp16x3_pointwise_split.cuh."""
    channel_lanes = 2 if channels % 32 else 4
    chunk_jobs, warps = filters * channel_lanes // 32, 4 * teams
    jobs = [
        ceil(chunks * parts / warps) * chunk_jobs // parts
        for parts in range(1, chunk_jobs + 1)
        if chunk_jobs % parts == 0 and (warps % parts == 0 or chunks * parts <= warps)
    ]
    return min(jobs) * channels // channel_lanes


def holds_own(filters: int, channels: int, chunks: int, teams: int) -> bool:
    """Whether registers hold the weights of each thread where the block splits them itself."""
    return own_weights(filters, channels, chunks, teams) <= OWN_HOLD[teams]


def sample() -> list[dict[str, int]]:
    """The largest tiles that registers hold, small ones, and each other macro in its settings."""
    fp32, in_tf32 = PRODUCTS[FP32], PRODUCTS[TF32]

    def sizes(products: int, single: bool, form: Form = Form.PLAIN) -> list[tuple[int, int, int]]:
        return [(most_filters(t, c, products, single, form), c, t) for t, c in product(TEAMS, CHANNELS)]

    found, elements, images, shared = [], {"vector": 0}, {"plane": 49}, {"split_last": 2}
    shifted, finer = {"vector": 0, "shifted": 8}, {"vector": 0, "shifted": 4}
    single, reloaded = {"resident": 1, "weight_stages": 1}, {"resident": 1, "strided": 0}
    for size in sizes(fp32, False):
        found += [macros_of(*size), macros_of(*size, staged=32, **elements)]
        # Beside three chunks of pixels of three teams there is no room for 64 filters.
        less = (min(size[0], 48), *size[1:]) if size[1:] == (64, 3) else size
        found += [macros_of(*less, **shared), macros_of(*less, staged=32, **shared, **elements)]
    for size in sizes(fp32, False, Form.IMAGES):
        found += [macros_of(*size, **images), macros_of(*size, **shared, **images)]
        found += [macros_of(*size, staged=32, joint=1, weight_stages=2 * size[2], **images)]
        found += [macros_of(*size, **reloaded, staged=32, plane=35, vector=0)]
        filters, channels, teams = size
        chunks = [n for n in range(1, 40) if holds_own(filters, channels, n, teams)]
        found += [macros_of(*size, **reloaded, weight_stages=n, own=4, **images) for n in chunks[-1:]]
    for size in sizes(fp32, False, Form.SHIFTED_8):
        filters, channels, teams = size
        found += [macros_of(*size, **shifted), macros_of(*size, **reloaded, staged=32, **finer)]
        found += [macros_of(*size, **shared, **shifted), macros_of(*size, **shared, staged=32, **finer)]
        found += [macros_of(*size, joint=1, weight_stages=2 * teams, **finer)]
        chunks = [n for n in range(1, 40) if holds_own(filters, channels, n, teams)]
        found += [macros_of(*size, **reloaded, weight_stages=n, own=4, staged=32, **shifted) for n in chunks[-1:]]
    for size in sizes(fp32, True):
        found += [macros_of(*size, **single), macros_of(*size, **single, strided=0, own=1, staged=32, **elements)]
    for form, kind in ((Form.SHIFTED_8, shifted), (Form.SHIFTED_4, finer), (Form.IMAGES, images)):
        for size, strided in product(sizes(fp32, True, form), (0, 1)):
            found.append(macros_of(*size, **single, strided=strided, own=4, staged=32, **kind))
    found += [macros_of(16, 64, 3, stages=4, weight_stages=3, **reloaded, staged=32, **elements)]
    found += [macros_of(128, 64, 2, stages=3, weight_stages=3, **shifted), macros_of(160, 48, 2, staged=32)]
    found += [macros_of(64, 64, 2, joint=1, stages=3, weight_stages=8, **reloaded, **elements)]
    found += [macros_of(80, 48, 3, joint=1, weight_stages=4, **reloaded, staged=32, **elements)]
    found += [macros_of(32, 48, 3, joint=1, stages=3, weight_stages=6, **reloaded, own=1, staged=32)]
    in_one = []
    for size in sizes(in_tf32, False):
        in_one += [macros_of(*size), macros_of(*size, **shared)]
        in_one.append(macros_of(*size, joint=1, weight_stages=2 * size[2], **elements))
    in_one += [macros_of(*size, **finer) for size in sizes(in_tf32, False, Form.SHIFTED_8)]
    in_one += [macros_of(*size, **images) for size in sizes(in_tf32, False, Form.IMAGES)]
    in_one += [macros_of(*size, **single, own=4, staged=32, **shifted) for size in sizes(in_tf32, True, Form.SHIFTED_8)]
    in_one += [macros_of(*size, **single, own=4, staged=32, **images) for size in sizes(in_tf32, True, Form.IMAGES)]
    found += [macros | {"PRODUCTS": in_tf32} for macros in in_one]
    widest = [macros_of(128, 64, 2, **kind) for kind in ({}, elements, shifted, finer, images)]
    return found + [macros | {"EVICT_FIRST": 5} for macros in widest]


def macros_of(
    filters: int,
    channels: int,
    teams: int,
    *,
    joint: int = 0,
    stages: int = 2,
    weight_stages: int = 2,
    resident: int = 0,
    strided: int = 1,
    split_last: int = 1,
    own: int = 0,
    staged: int = 64,
    vector: int = 1,
    shifted: int = 0,
    plane: int = 0,
    evict_first: int = 0,
    products: int = PRODUCTS[FP32],
) -> dict[str, int]:
    return {
        "FILTERS": filters,
        "CHANNELS": channels,
        "TEAMS": teams,
        "JOINT": joint,
        "STAGES": stages,
        "WEIGHT_STAGES": weight_stages,
        "RESIDENT": resident,
        "STRIDED": strided,
        "SPLIT_LAST": split_last,
        "OWN": own,
        "STAGED": staged,
        "VECTOR": vector,
        "SHIFTED": shifted,
        "PLANE": plane,
        "EVICT_FIRST": evict_first,
        "PRODUCTS": products,
    }
