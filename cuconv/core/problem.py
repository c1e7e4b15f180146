"""The description of one convolution: its sizes and precision, checked before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import gcd
from numbers import Integral
from operator import index
from typing import Any

FLOAT_BYTES = 4
HALF_BYTES = 2
PRECISIONS = FP32, TF32 = ("fp32", "tf32")  # for float32 tensors
HALVES = FP16, BF16 = ("fp16", "bf16")  # for tensors of the same type
TF32_LAST = "tf32_channels_last"  # TF32 of float32 tensors in channels last
CHANNELS_LAST = (TF32_LAST, *HALVES)
MAX_SIZE = 2**31 - 2**14  # kernels count rows, channels and so on in 32-bit integers, and round up to whole tiles


class UnsupportedProblem(ValueError):
    """The convolution is malformed, or the chosen algorithm cannot compute it; the message says which."""


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A convolution with zero padding: output[n,m,y,x] = sum over c, ky, kx of weight[m,c,ky,kx] * padded[n,c,...].

    Tensors in float32 are NCHW in memory, unless the precision says otherwise; those in half precision are NHWC
    (channels last).

    n                       images of a batch
    c                       channels of an image (the paper's depth)
    h, w                    rows and columns of an image
    m                       filters
    kh, kw                  rows and columns of a filter
    pad_h, pad_w            rows of zeros above and below each image, columns of zeros left and right of it
    precision               "fp32": float32 tensors, and the accuracy of a plain FP32 sum; "tf32": float32 tensors, of
                            which input and weight may be rounded to TF32 (11 bits); "tf32_channels_last": the same of
                            tensors in NHWC; "fp16" and "bf16": tensors in half precision, sums in FP32, and an output
                            that is rounded once
    stride_h, stride_w      rows and columns of the padded image from one output pixel to the next
    dilation_h, dilation_w  rows and columns of the padded image from one filter position to the next
    groups                  equal parts of the channels; each part of the filters, m / groups, reads one of them
    more_h, more_w          rows of zeros below each image less those above, columns right of it less those left
    out_h, out_w            rows and columns of an output plane; they follow from the others

    Filter position (ky, kx) of output pixel (y, x) reads row y * stride_h + ky * dilation_h and column
    x * stride_w + kx * dilation_w of the padded image.

    Raises UnsupportedProblem for a size below 1 or above MAX_SIZE, what is no whole number, an unknown precision,
    channels or filters that the groups do not divide, or a filter larger than the padded image.
    """

    n: int
    c: int
    h: int
    w: int
    m: int
    kh: int
    kw: int
    pad_h: int = 0
    pad_w: int = 0
    precision: str = FP32
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    more_h: int = 0
    more_w: int = 0
    out_h: int = field(init=False, repr=False, compare=False)
    out_w: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            if type(value) is not int:  # otherwise a plain int, which does not overflow
                value = whole_number(name, value)
                object.__setattr__(self, name, value)
            if value > MAX_SIZE:
                raise UnsupportedProblem(f"{name}={shown(value)}: the limit is {MAX_SIZE}")
        known = (*PRECISIONS, TF32_LAST, *HALVES)
        if not isinstance(self.precision, str) or self.precision not in known:
            raise UnsupportedProblem(f"precision={shown(self.precision)}: must be one of {', '.join(known)}")
        self._check_values()
        for name, out in (("out_h", self._outputs("h")), ("out_w", self._outputs("w"))):
            object.__setattr__(self, name, out)  # kept, since plans ask for them hundreds of times
        self._check_outputs()
        self._check_limits()

    def _check_values(self) -> None:
        """Check that the values make a convolution."""
        for name in ("n", "c", "h", "w", "m", "kh", "kw"):
            value = getattr(self, name)
            if value < 1:
                raise UnsupportedProblem(
                    f"{name}={value}: every size must be at least 1; empty tensors have no convolution"
                )
        for name in ("stride_h", "stride_w", "dilation_h", "dilation_w", "groups"):
            if getattr(self, name) < 1:
                raise UnsupportedProblem(f"{name}={getattr(self, name)}: must be at least 1")
        for axis in ("pad_h", "pad_w"):
            if getattr(self, axis) < 0:
                raise UnsupportedProblem(f"{axis}={getattr(self, axis)}: padding must be 0 or more")
        for axis, (before, behind) in zip("hw", self.padding, strict=True):
            if behind < 0:
                raise UnsupportedProblem(
                    f"more_{axis}={behind - before}: must be -{before} or more where pad_{axis}={before}"
                )
        for what, count in (("channels", self.c), ("filters", self.m)):
            if count % self.groups:
                raise UnsupportedProblem(f"groups={self.groups}: must divide the {count} {what}")

    def _outputs(self, axis: str) -> int:
        """The rows, "h", or columns, "w", of an output plane."""
        size, dilation, kernel, stride = (
            getattr(self, name) for name in (f"padded_{axis}", f"dilation_{axis}", f"k{axis}", f"stride_{axis}")
        )
        return (size - dilation * (kernel - 1) - 1) // stride + 1

    def _check_outputs(self) -> None:
        """Check that the filter fits the padded image."""
        if self.out_h < 1 or self.out_w < 1:
            dilated = "" if self.dilation_h == self.dilation_w == 1 else " with its dilation"
            raise UnsupportedProblem(
                f"filter {self.kh}x{self.kw}{dilated} is larger than the padded input "
                f"{self.padded_h}x{self.padded_w}: use a smaller filter or more padding"
            )

    def _check_limits(self) -> None:
        """Check that kernels can count the rows and columns of a padded image."""
        for what, count in (("rows", self.padded_h), ("columns", self.padded_w)):
            if count > MAX_SIZE:
                raise UnsupportedProblem(f"{self.label}: {count} {what} in the padded image, the limit is {MAX_SIZE}")

    @property
    def padding(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The zeros at both ends of each axis: ((above, below), (left, right)) of an image."""
        return (self.pad_h, self.pad_h + self.more_h), (self.pad_w, self.pad_w + self.more_w)

    @property
    def has_equal_padding(self) -> bool:
        """Whether both ends of each axis have equally many zeros."""
        return self.more_h == self.more_w == 0

    @property
    def is_padded(self) -> bool:
        """Whether there are zeros at any end of an axis."""
        return max(self.pad_h, self.pad_w, self.more_h, self.more_w) > 0

    @property
    def padded_h(self) -> int:
        """Rows of a padded image."""
        return self.h + 2 * self.pad_h + self.more_h

    @property
    def padded_w(self) -> int:
        """Columns of a padded image."""
        return self.w + 2 * self.pad_w + self.more_w

    @property
    def geometry(self) -> dict[str, Any]:
        """Stride, padding, dilation and groups for conv2d: ours, and torch's where padding is equal."""
        return {
            "stride": (self.stride_h, self.stride_w),
            "padding": (self.pad_h, self.pad_w) if self.has_equal_padding else self.padding,
            "dilation": (self.dilation_h, self.dilation_w),
            "groups": self.groups,
        }

    @property
    def is_dense(self) -> bool:
        """Whether stride, dilation and groups are all 1, as in the paper."""
        return self.stride_h == self.stride_w == self.dilation_h == self.dilation_w == self.groups == 1

    @property
    def group_channels(self) -> int:
        """Channels that a filter reads."""
        return self.c // self.groups

    @property
    def group_filters(self) -> int:
        """Filters that read the same channels."""
        return self.m // self.groups

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """The shape of the input: (N, C, H, W)."""
        return (self.n, self.c, self.h, self.w)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights: (M, C / groups, KH, KW)."""
        return (self.m, self.group_channels, self.kh, self.kw)

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """The shape of the output: (N, M, OH, OW)."""
        return (self.n, self.m, self.out_h, self.out_w)

    @property
    def is_half(self) -> bool:
        """Whether the tensors are in half precision, and channels last."""
        return self.precision in HALVES

    @property
    def is_channels_last(self) -> bool:
        """Whether the tensors are NHWC in memory."""
        return self.precision in CHANNELS_LAST

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a tensor."""
        return HALF_BYTES if self.is_half else FLOAT_BYTES

    @property
    def filter_area(self) -> int:
        """Positions of a filter, KH * KW: the paper's H_f * W_f."""
        return self.kh * self.kw

    @property
    def out_pixels(self) -> int:
        """Elements of one output plane."""
        return self.out_h * self.out_w

    @property
    def flop(self) -> int:
        """Floating-point operations of the direct formula; a multiply-add counts as two."""
        return 2 * self.n * self.m * self.out_pixels * self.group_channels * self.filter_area

    @property
    def min_bytes(self) -> int:
        """The least traffic of device memory in bytes: what is read of input and weights, read once; output written."""
        rows = _positions_read(self.h, self.kh, self.pad_h, self.stride_h, self.dilation_h, self.out_h)
        columns = _positions_read(self.w, self.kw, self.pad_w, self.stride_w, self.dilation_w, self.out_w)
        inputs = self.n * self.c * rows * columns
        weights = self.m * self.group_channels * self.filter_area
        return self.element_bytes * (inputs + weights + self.n * self.m * self.out_pixels)

    @property
    def label(self) -> str:
        """The paper's name of the problem: HW-N-K-M-C, with HxW and KHxKW where they are not square.

        A stride, a dilation and groups above 1 follow as -s2, -d2 and -g32, and padding that differs at both ends of an
        axis as -p0:1.
        """
        label = f"{_square(self.h, self.w)}-{self.n}-{_square(self.kh, self.kw)}-{self.m}-{self.c}"
        if self.stride_h > 1 or self.stride_w > 1:
            label += f"-s{_square(self.stride_h, self.stride_w)}"
        if self.dilation_h > 1 or self.dilation_w > 1:
            label += f"-d{_square(self.dilation_h, self.dilation_w)}"
        if self.groups > 1:
            label += f"-g{self.groups}"
        if not self.has_equal_padding:
            label += f"-p{_square(*(f'{before}:{behind}' for before, behind in self.padding))}"
        return label


SIZES = tuple(one.name for one in fields(ConvProblem) if one.init and one.name != "precision")


def _square(rows: object, columns: object) -> str:
    return str(rows) if rows == columns else f"{rows}x{columns}"


@lru_cache(maxsize=1024)
def _positions_read(size: int, kernel: int, pad: int, stride: int, dilation: int, out: int) -> int:
    """The rows, or columns, of an image that at least one output pixel reads.

    The positions y * stride + k * dilation - pad fall into classes: those of equal k modulo `period`, which are
    multiples of the stride apart. Filter positions and outputs may change places, and do where that makes fewer
    classes. There are less than 2**16 then, since an image of MAX_SIZE has no room for 2**16 outputs and as many filter
    positions.
    """
    shared = gcd(stride, dilation)
    if min(kernel, stride // shared) > min(out, dilation // shared):
        kernel, stride, dilation, out = out, dilation, stride, kernel
    period, jump = stride // shared, dilation // shared  # jump: in strides, from a filter position to the next

    def below(limit: int, runs: int) -> int:
        """The positions of a class less than `limit` strides from its first: runs of `out`, each `jump` later."""
        whole = min(max(limit, 0) // jump, runs - 1)
        return whole * min(out, jump) + min(max(limit, 0) - whole * jump, out)

    count = 0
    for k in range(min(kernel, period)):
        first, runs = k * dilation - pad, ceil_div(kernel - k, period)
        count += below(ceil_div(size - first, stride), runs) - below(ceil_div(-first, stride), runs)
    return count


def ceil_div(a: Any, b: Any) -> Any:
    """The quotient of two whole numbers, or of arrays of them, rounded up."""
    return -(-a // b)


def whole_number(name: str, value: Any) -> int:
    """A value that counts something, as a plain int; raises UnsupportedProblem for 1.0, True and what is no number."""
    if type(value) is int:  # at once: a new size checks a dozen numbers for each layer
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UnsupportedProblem(f"{name}={shown(value)}: must be a whole number")
    return index(value)


def truth(name: str, value: Any) -> bool:
    """A value as a bool; raises TypeError for an array of several values."""
    try:
        return bool(value)
    except Exception:  # torch, numpy and CuPy raise errors of their own
        raise TypeError(f"{name}={shown(value)}: must be True or False") from None


def shown(value: Any) -> str:
    """A value in a message: its representation where that is short and exists, otherwise its type."""
    try:
        text = repr(value)
    except Exception:  # whatever a stranger's __repr__ raises
        text = ""
    return text if 0 < len(text) <= 80 else f"{type(value).__module__}.{type(value).__qualname__}"
