"""Group normalisation: the sizes of a call, and the launch of `group_norm.cu`, for float32."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path

from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX
from cuconv.algorithms.planes.pixels import MAX_CHANNELS, VECTOR
from cuconv.core.activation import Activation
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Launch
from cuconv.core.problem import FLOAT_BYTES, FP32, HALVES, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 512
ALIGNED = 4  # elements of 16 bytes
CLUSTERS = (1, 2, 4, 8, 16)  # blocks
RESIDENT = 2  # blocks of an SM, so that one copies while the other computes
LEAST_SLICE = 2048  # elements of a block: an instruction of each thread
STATIC_BYTES = 256  # the kernel's moments and its barrier take less


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """activation((input - mean) / sqrt(variance + epsilon) * weight + bias) by groups of an image's channels.

    Yuxin Wu and Kaiming He, "Group Normalization", 2018, equations 1 to 7.

    input_shape  (N, C, H, W): contiguous in float32, channels last in half precision
    groups       equal parts of the channels, each with a mean and a variance of its own
    epsilon      added to the variance
    activation   the function of each output
    precision    "fp32", "fp16" or "bf16": the type of the tensors; all of them are computed in FP32

    Raises UnsupportedProblem for what the kernels do not compute on any GPU.
    """

    input_shape: tuple[int, int, int, int]
    groups: int
    epsilon: float
    activation: Activation
    precision: str = FP32

    def __post_init__(self) -> None:
        n, c, _, _ = self.input_shape
        if min(*self.input_shape, self.groups) < 1 or c % self.groups:
            raise UnsupportedProblem(f"{self}: every size must be at least 1, and groups divide the channels")
        if self.precision in HALVES:
            self._check_vectors()
        elif self.size % ALIGNED:
            raise UnsupportedProblem(f"{self}: a group has {self.size} elements, which must be a multiple of {ALIGNED}")
        for what, count in (("elements of a group", self.size), ("blocks", n * self.groups * CLUSTERS[-1])):
            if count > MAX_INDEX:
                raise UnsupportedProblem(f"{self}: {count} {what}, the limit is {MAX_INDEX}")

    def _check_vectors(self) -> None:
        """Check that channels are whole vectors, and that a block has threads for the least set of groups."""
        if self.input_shape[1] % VECTOR:
            raise UnsupportedProblem(f"{self}: the channels must be a multiple of {VECTOR}")
        if self.least_channels > MAX_CHANNELS:
            raise UnsupportedProblem(f"{self}: groups of {self.group_channels} channels, too many for a block")

    @property
    def group_channels(self) -> int:
        """Channels of a group."""
        return self.input_shape[1] // self.groups

    @property
    def least_channels(self) -> int:
        """The least number of channels that are both whole groups and whole vectors."""
        return self.group_channels * VECTOR // gcd(self.group_channels, VECTOR)

    @property
    def size(self) -> int:
        """Elements of a group."""
        return prod(self.input_shape[1:]) // self.groups


def launch(norm: GroupNorm, device: DeviceSpec) -> Launch:
    """The launch of a call whose input and output start at multiples of 16 bytes; its weight and bias may be missing.

    Raises UnsupportedProblem where the GPU is no Hopper.
    """
    if not device.is_hopper:
        raise UnsupportedProblem(f"{norm}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}")
    n, c, h, w = norm.input_shape
    room = device.shared_bytes_of(RESIDENT) - STATIC_BYTES
    clusters = [
        blocks
        for blocks in CLUSTERS
        if blocks <= device.max_cluster_blocks and (blocks == 1 or norm.size >= blocks * LEAST_SLICE)
    ]
    enough = (
        blocks
        for blocks in clusters
        if n * norm.groups * blocks >= RESIDENT * device.sm_count and _slice(norm, blocks) * FLOAT_BYTES <= room
    )
    blocks = next(enough, clusters[-1])
    slice_bytes = _slice(norm, blocks) * FLOAT_BYTES
    kept = slice_bytes <= room
    return Launch(
        SOURCE,
        {"BLOCKS": blocks, "VECTOR": ALIGNED if h * w % ALIGNED == 0 else 1},
        "group_norm",
        n * norm.groups * blocks,
        THREADS,
        (INPUT, WEIGHT, BIAS, OUTPUT, c, norm.groups, h * w, _slice(norm, blocks), int(kept), bits_of(norm.epsilon),
         norm.activation.kind, norm.activation.packed_numbers),
        shared_bytes=slice_bytes if kept else 0,
        overlap=device.has_dependent_launch,
    )  # fmt: skip


def bits_of(number: float) -> int:
    """The bits of a number in float32, as an argument of a kernel."""
    return int.from_bytes(struct.pack("<f", number), "little")


def _slice(norm: GroupNorm, blocks: int) -> int:
    """Elements of a block's slice."""
    return ceil_div(ceil_div(norm.size, blocks), ALIGNED) * ALIGNED


def variants(arch: str) -> list[dict[str, int]]:
    """All kernel variants of an architecture."""
    found = [{"BLOCKS": blocks, "VECTOR": vector} for blocks in CLUSTERS for vector in (1, ALIGNED)]
    return found if arch == HOPPER_ARCH else []
