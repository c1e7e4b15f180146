"""Group normalisation in half precision, channels last: the launch of `nhwc_group_norm.cu`."""

from __future__ import annotations

from pathlib import Path

from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.algorithms.planes.group_norm import CLUSTERS, RESIDENT, GroupNorm, bits_of
from cuconv.algorithms.planes.pixels import MAX_CHANNELS, SECTOR, THREADS, WIDE, part_bytes, rows
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Argument, Launch
from cuconv.core.problem import BF16, FLOAT_BYTES, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")
LEAST_SLICE = MAX_CHANNELS  # elements of a block: a vector of each thread


def launch(norm: GroupNorm, device: DeviceSpec) -> Launch:
    """The launch of a call whose input and output start at multiples of 16 bytes; its weight and bias may be missing.

    Raises UnsupportedProblem where the GPU is no Hopper.
    """
    if not device.is_hopper:
        raise UnsupportedProblem(f"{norm}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}")
    n, c, h, w = norm.input_shape
    channels = set_channels(norm, device)
    clusters, (phases, parts) = n * ceil_div(c, channels), rows(channels)
    shared = 2 * (phases + 1) * channels * FLOAT_BYTES  # rows of moments, and the groups' means and scales
    room = device.shared_bytes_of(RESIDENT) - shared
    blocks = _cluster_blocks(device, clusters, h * w, channels, room)
    pixels = ceil_div(h * w, blocks)
    kept = part_bytes(pixels, channels) <= room
    arguments: tuple[Argument, ...] = (
        INPUT, WEIGHT, BIAS, OUTPUT, c, norm.group_channels, channels, h * w, pixels, phases, parts, int(kept),
        bits_of(norm.epsilon), norm.activation.kind, norm.activation.packed_numbers,
    )  # fmt: skip
    return Launch(
        SOURCE, {"BLOCKS": blocks, "BF16": int(norm.precision == BF16)}, "nhwc_group_norm", clusters * blocks, THREADS,
        arguments, shared_bytes=shared + part_bytes(pixels, channels) * kept, overlap=device.has_dependent_launch,
    )  # fmt: skip


def set_channels(norm: GroupNorm, device: DeviceSpec) -> int:
    """The channels of a cluster's groups.

    At least 32 bytes of each pixel, and up to 64 as long as every SM still gets a block. An image with fewer channels
    is one set.
    """
    n, c, _, _ = norm.input_shape
    channels = norm.least_channels
    while channels < c and (
        channels < SECTOR
        or (channels < WIDE and n * ceil_div(c, 2 * channels) * device.max_cluster_blocks >= device.sm_count)
    ):
        channels *= 2
    return channels


def _cluster_blocks(device: DeviceSpec, clusters: int, pixels: int, channels: int, room: int) -> int:
    """The number of blocks of a cluster with the least predicted time; the smallest of equals.

    The time is waves of clusters x pixels of a slice x passes over memory: 2 if the slice stays in shared memory (one
    read, one write), else 3. No slice is smaller than LEAST_SLICE.
    """

    def cost(blocks: int) -> int:
        of_block = ceil_div(pixels, blocks)
        waves = ceil_div(clusters, max(1, RESIDENT * int(device.clusters_at_a_time(blocks))))
        return waves * of_block * (2 if part_bytes(of_block, channels) <= room else 3)

    most = min(device.max_cluster_blocks, pixels * channels // LEAST_SLICE)
    return min((blocks for blocks in CLUSTERS if blocks == 1 or blocks <= most), key=cost)


def variants(arch: str) -> list[dict[str, int]]:
    """All kernel variants of an architecture."""
    found = [{"BLOCKS": blocks, "BF16": is_bf16} for blocks in CLUSTERS for is_bf16 in (0, 1)]
    return found if arch == HOPPER_ARCH else []
