"""Squeeze and excitation in half precision, channels last: the launch of `nhwc_squeeze_excite.cu`."""

from __future__ import annotations

from pathlib import Path

from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.algorithms.planes.pixels import MAX_CHANNELS, THREADS, VECTOR, WIDE, part_bytes, rows
from cuconv.algorithms.planes.squeeze_excite import CLUSTERS, STATIC_BYTES, WARPS, Excitation
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Argument, Launch
from cuconv.core.problem import BF16, FLOAT_BYTES, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")


def launch(excitation: Excitation, device: DeviceSpec) -> Launch:
    """The launch of a call whose operands start at multiples of 16 bytes.

    Its weights are in float32: W1 transposed, (C, hidden), and behind it W2; its biases b1 and behind it b2. Raises
    UnsupportedProblem where the GPU is no Hopper, or its shared memory does not hold a block's weights.
    """
    if not device.is_hopper:
        raise UnsupportedProblem(
            f"{excitation}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}"
        )
    n, c = excitation.input_shape[:2]
    room = device.shared_bytes_per_block - STATIC_BYTES
    few, most = CLUSTERS
    # Fewer blocks let the GPU compute more images at a time, if they hold the weights.
    at_a_time = device.clusters_at_a_time(most) if device.max_cluster_blocks >= most else 0
    sizes = CLUSTERS if n > at_a_time > 0 else (most,) if at_a_time else (few,)
    found = ((blocks, parts) for blocks in sizes if (parts := _channel_parts(excitation, blocks, room)))
    blocks, channel_blocks = next(found, (0, 0))
    if not blocks:
        raise UnsupportedProblem(f"{excitation}: {room} bytes of shared memory do not hold a block's weights")
    channels = _block_channels(c, channel_blocks)
    pixels = ceil_div(excitation.pixels, blocks // channel_blocks)
    shared = _shared_bytes(excitation, channels)
    kept = shared + part_bytes(pixels, channels) <= room
    arguments: tuple[Argument, ...] = (
        INPUT, WEIGHT, BIAS, OUTPUT, c, excitation.pixels, excitation.hidden, channel_blocks, channels, pixels,
        *rows(channels), int(kept), *excitation.functions,
    )  # fmt: skip
    return Launch(
        SOURCE, {"BLOCKS": blocks, "BF16": int(excitation.precision == BF16)}, "nhwc_squeeze_excite", n * blocks,
        THREADS, arguments, shared_bytes=shared + part_bytes(pixels, channels) * kept,
        overlap=device.has_dependent_launch,
    )  # fmt: skip


def _channel_parts(excitation: Excitation, blocks: int, room: int) -> int:
    """The number of parts into which a cluster cuts the channels: a power of two, 0 if the weights fit with none.

    It is the largest with at least WIDE channels a part, or larger if the weights need it.
    """
    c = excitation.input_shape[1]
    parts = 1
    while 2 * parts <= blocks and c >= 2 * parts * WIDE:
        parts *= 2
    while parts <= blocks:
        channels = _block_channels(c, parts)
        if channels <= MAX_CHANNELS and _shared_bytes(excitation, channels) <= room:
            return parts
        parts *= 2
    return 0


def _block_channels(channels: int, parts: int) -> int:
    """The channels of a block: whole vectors."""
    return ceil_div(ceil_div(channels, parts), VECTOR) * VECTOR


def _shared_bytes(excitation: Excitation, channels: int) -> int:
    """The shared memory of a block of so many channels beside its pixels: weights, sums, gates and hidden values."""
    phases, _ = rows(channels)
    hidden = excitation.hidden
    return FLOAT_BYTES * (channels * (2 * hidden + phases + 1) + hidden * (WARPS + 2))


def variants(arch: str) -> list[dict[str, int]]:
    """All kernel variants of an architecture."""
    found = [{"BLOCKS": blocks, "BF16": is_bf16} for blocks in CLUSTERS for is_bf16 in (0, 1)]
    return found if arch == HOPPER_ARCH else []
