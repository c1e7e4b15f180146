"""Max pooling of images in half precision, channels last: its sizes, and the launch of `max_pool.cu`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import MAX_INDEX
from cuconv.core.launch import INPUT, OUTPUT, Argument, Launch
from cuconv.core.problem import BF16, HALVES, UnsupportedProblem, ceil_div

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 128  # a small output then has a block for most SMs
MAX_PIXELS = 2**28  # rows and columns, so that sums of several of them are 32-bit integers

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MaxPool:
    """A max pooling: output[n,c,y,x] is the largest input[n,c,...] of a window, without the padding.

    precision     "fp16" or "bf16", the type of the elements
    input_shape   (N, C, H, W), channels last in memory
    kernel        rows and columns of the filter
    stride        rows and columns of the input from one window to the next
    padding       rows above and below, and columns left and right of an image, that windows may cover
    dilation      rows and columns of the input from one filter position to the next
    ceil_mode     whether the last window of an axis may reach beyond the padded image

    Raises UnsupportedProblem for what the kernel does not compute.
    """

    precision: str
    input_shape: tuple[int, int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        channels = self.input_shape[1]
        if self.precision not in HALVES:
            raise UnsupportedProblem(f"precision={self.precision!r}: max pooling computes {' and '.join(HALVES)}")
        if channels % VECTOR_CHANNELS:
            raise UnsupportedProblem(f"{channels} channels: max pooling takes a multiple of {VECTOR_CHANNELS}")
        if min(*self.input_shape, *self.kernel, *self.stride, *self.dilation) < 1 or min(self.padding) < 0:
            raise UnsupportedProblem(f"{self}: every size must be at least 1, and padding at least 0")
        self._check_outputs()
        self._check_limits()

    def _check_outputs(self) -> None:
        """Check the limit of the padding, which is torch's, and that there are outputs."""
        if any(2 * pad > size for pad, size in zip(self.padding, self.kernel, strict=True)):
            raise UnsupportedProblem(f"padding={self.padding}: must be at most half of the filter {self.kernel}")
        if min(self.output_shape) < 1:
            raise UnsupportedProblem(f"{self}: the filter is larger than the padded input")

    def _check_limits(self) -> None:
        """Check that 32-bit integers count what the kernel counts."""
        _, c, h, w = self.input_shape
        for axis, size in enumerate((h, w)):
            reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            if max(size, reach, self.stride[axis], self.dilation[axis]) > MAX_PIXELS:
                raise UnsupportedProblem(f"{self}: the limit of an axis is {MAX_PIXELS} pixels")
        for what, vectors in (("a row", w * c // VECTOR_CHANNELS), ("the output", self.outputs + THREADS)):
            if vectors > MAX_INDEX:
                raise UnsupportedProblem(f"{self}: {what} has {vectors} vectors, the limit is {MAX_INDEX}")

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """The shape of the output: (N, C, OH, OW)."""
        n, c, *plane = self.input_shape
        windows = zip(plane, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        out_h, out_w = (windows_along(*one, self.ceil_mode) for one in windows)
        return (n, c, out_h, out_w)

    @property
    def outputs(self) -> int:
        """The vectors of the output."""
        n, c, h, w = self.output_shape
        return n * h * w * (c // VECTOR_CHANNELS)

    @property
    def macros(self) -> dict[str, int]:
        """The macros of the kernel variant."""
        return {"BF16": int(self.precision == BF16)}


def windows_along(
    size: Any, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool, least: Callable[..., Any] = min
) -> Any:
    """The windows along an axis of `size` pixels.

    In ceil mode the last one may reach beyond the padded image, but begins in the image or in the padding before it.
    least: the minimum of two numbers, for a size that is a symbol.
    """
    left = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return left // stride + 1
    return least(ceil_div(left, stride), (size + pad - 1) // stride) + 1


def launch(pool: MaxPool, overlap: bool) -> Launch:
    """The launch of a max pooling whose operands start at multiples of 16 bytes.

    overlap: whether the GPU has programmatic dependent launch, as from compute capability 9.0 on.
    """
    _, c, h, w = pool.input_shape
    *_, out_h, out_w = pool.output_shape
    vectors = c // VECTOR_CHANNELS
    arguments: tuple[Argument, ...] = (
        INPUT, OUTPUT, pool.outputs, h, w, *_divisor(vectors), *_divisor(out_h), *_divisor(out_w),
        *pool.kernel, *pool.stride, *pool.padding, *(part for step in pool.dilation for part in _divisor(step)),
    )  # fmt: skip
    return Launch(SOURCE, pool.macros, "max_pool", ceil_div(pool.outputs, THREADS), THREADS, arguments, overlap=overlap)


def _divisor(divisor: int) -> tuple[int, int]:
    """A divisor, and its division as a multiplication."""
    return divisor, packed_divisor(divisor)


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{"BF16": is_bf16} for is_bf16 in (0, 1)]
