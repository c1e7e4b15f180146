"""Squeeze and excitation: the sizes of a call, and the launch of `squeeze_excite.cu`, for float32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX
from cuconv.algorithms.planes.pixels import VECTOR
from cuconv.core.activation import Activation
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Argument, Launch
from cuconv.core.problem import FLOAT_BYTES, FP32, HALVES, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")
WARPS = 16
VECTOR_CHANNELS = 4  # in float32 a block's channels are a multiple of it, and so are those of an image
CLUSTERS = (8, 16)  # blocks
STATIC_BYTES = 16  # the kernel's two barriers


@dataclass(frozen=True, slots=True)
class Excitation:
    """output[n,c] = input[n,c] * second(W2 first(W1 m + b1) + b2)[c] of the means m[c] of an image's planes.

    Jie Hu et al., "Squeeze-and-Excitation Networks", 2018, equations 2 to 4, where `first` is ReLU and `second` the
    sigmoid.

    input_shape    (N, C, H, W): contiguous in float32, channels last in half precision
    hidden         rows of W1, which is (hidden, C), and columns of W2, which is (C, hidden)
    first, second  the activations
    precision      "fp32", "fp16" or "bf16": the type of the images; weights and gates are FP32

    Raises UnsupportedProblem for what the kernels do not compute on any GPU.
    """

    input_shape: tuple[int, int, int, int]
    hidden: int
    first: Activation
    second: Activation
    precision: str = FP32

    def __post_init__(self) -> None:
        n, c, h, w = self.input_shape
        if min(*self.input_shape, self.hidden) < 1:
            raise UnsupportedProblem(f"{self}: every size must be at least 1")
        whole = VECTOR if self.precision in HALVES else VECTOR_CHANNELS
        if c % whole:
            raise UnsupportedProblem(f"{c} channels: squeeze and excitation takes a multiple of {whole}")
        for what, count in (("elements of an image", c * h * w), ("blocks", n * CLUSTERS[-1])):
            if count > MAX_INDEX:
                raise UnsupportedProblem(f"{self}: {count} {what}, the limit is {MAX_INDEX}")

    @property
    def pixels(self) -> int:
        """Pixels of a plane."""
        return self.input_shape[2] * self.input_shape[3]

    @property
    def functions(self) -> tuple[int, ...]:
        """The activations as arguments of a kernel."""
        return tuple(part for one in (self.first, self.second) for part in (one.kind, one.packed_numbers))


def launch(excitation: Excitation, device: DeviceSpec) -> Launch:
    """The launch of a call whose operands start at multiples of 16 bytes.

    Its weights are W1 transposed, (C, hidden), and behind it W2; its biases b1 and behind it b2. Raises
    UnsupportedProblem where the GPU is no Hopper, or its shared memory does not hold a block's weights.
    """
    if not device.is_hopper:
        raise UnsupportedProblem(
            f"{excitation}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}"
        )
    n, hidden, room = excitation.input_shape[0], excitation.hidden, device.shared_bytes_per_block - STATIC_BYTES
    few, most = CLUSTERS
    # Fewer blocks let the GPU compute more images at a time, if they hold the weights.
    at_a_time = device.clusters_at_a_time(most) if device.max_cluster_blocks >= most else 0
    few_do = n > at_a_time and _numbers(excitation, few) * FLOAT_BYTES <= room
    blocks = few if few_do or not at_a_time else most
    block_channels, parts = _share(excitation, blocks)
    shared = _numbers(excitation, blocks) * FLOAT_BYTES
    planes = block_channels * excitation.pixels * FLOAT_BYTES
    if shared > room:
        raise UnsupportedProblem(
            f"{excitation}: a block's weights take {shared} bytes of shared memory, {room} are there"
        )
    kept = shared + planes <= room
    arguments: tuple[Argument, ...] = (
        *(INPUT, WEIGHT, BIAS, OUTPUT),
        *(excitation.input_shape[1], excitation.pixels, hidden, block_channels, parts, int(kept)),
        *excitation.functions,
    )
    return Launch(
        SOURCE, {"BLOCKS": blocks}, "squeeze_excite", n * blocks, 32 * WARPS, arguments,
        shared_bytes=shared + planes * kept, overlap=device.has_dependent_launch,
    )  # fmt: skip


def _share(excitation: Excitation, blocks: int) -> tuple[int, int]:
    """The channels of a block, and the warps that share a plane of it."""
    channels = ceil_div(ceil_div(excitation.input_shape[1], blocks), VECTOR_CHANNELS) * VECTOR_CHANNELS
    warps = 1
    while warps * channels < WARPS:
        warps *= 2
    return channels, warps


def _numbers(excitation: Excitation, blocks: int) -> int:
    """The numbers in shared memory beside the planes: weights, sums, gates and hidden values."""
    channels, parts = _share(excitation, blocks)
    return channels * (2 * excitation.hidden + parts + 1) + excitation.hidden * (WARPS + 2)


def variants(arch: str) -> list[dict[str, int]]:
    """All kernel variants of an architecture."""
    return [{"BLOCKS": blocks} for blocks in CLUSTERS] if arch == HOPPER_ARCH else []
