"""The description of one convolution: its sizes and precision, checked before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_BYTES = 4
PRECISIONS = FP32, TF32 = ("fp32", "tf32")


class UnsupportedProblem(ValueError):
    """The convolution is malformed, or the chosen algorithm cannot compute it; the message says which."""


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A stride-1 convolution, NCHW, zero padding: output[n,m] = sum over c, ky, kx of input[n,c] * weight[m,c,ky,kx].

    n          images of a batch
    c          channels of an image (the paper's depth)
    h, w       rows and columns of an image
    m          filters
    kh, kw     rows and columns of a filter
    pad_h      rows of zeros above and below each image
    pad_w      columns of zeros left and right of each image
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": input and weight may be rounded to TF32 (11 bits)

    Raises UnsupportedProblem for a size below 1, an unknown precision, or a filter larger than the padded image.
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

    def __post_init__(self) -> None:
        for field in ("n", "c", "h", "w", "m", "kh", "kw"):
            value = getattr(self, field)
            if value < 1:
                raise UnsupportedProblem(
                    f"{field}={value}: every size must be at least 1; empty tensors have no convolution"
                )
        if self.precision not in PRECISIONS:
            raise UnsupportedProblem(f"precision={self.precision!r}: must be one of {', '.join(PRECISIONS)}")
        for axis in ("pad_h", "pad_w"):
            if getattr(self, axis) < 0:
                raise UnsupportedProblem(f"{axis}={getattr(self, axis)}: padding must be 0 or more")
        if self.out_h < 1 or self.out_w < 1:
            raise UnsupportedProblem(
                f"filter {self.kh}x{self.kw} is larger than the padded input "
                f"{self.h + 2 * self.pad_h}x{self.w + 2 * self.pad_w}: use a smaller filter or more padding"
            )

    @property
    def out_h(self) -> int:
        """Rows of an output plane."""
        return self.h + 2 * self.pad_h - self.kh + 1

    @property
    def out_w(self) -> int:
        """Columns of an output plane."""
        return self.w + 2 * self.pad_w - self.kw + 1

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """The shape of the input: (N, C, H, W)."""
        return (self.n, self.c, self.h, self.w)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights: (M, C, KH, KW)."""
        return (self.m, self.c, self.kh, self.kw)

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """The shape of the output: (N, M, OH, OW)."""
        return (self.n, self.m, self.out_h, self.out_w)

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
        return 2 * self.n * self.m * self.out_pixels * self.c * self.filter_area

    @property
    def min_bytes(self) -> int:
        """The least traffic of device memory in bytes: input and weights read once, output written once."""
        inputs = self.n * self.c * self.h * self.w
        weights = self.m * self.c * self.filter_area
        return FLOAT_BYTES * (inputs + weights + self.n * self.m * self.out_pixels)

    @property
    def label(self) -> str:
        """The paper's name of the problem: HW-N-K-M-C, with HxW and KHxKW where they are not square."""
        size = str(self.h) if self.h == self.w else f"{self.h}x{self.w}"
        kernel = str(self.kh) if self.kh == self.kw else f"{self.kh}x{self.kw}"
        return f"{size}-{self.n}-{kernel}-{self.m}-{self.c}"
