"""Windows of vectors: what nhwc_depthwise and nhwc_grouped share. A vector is eight channels of a pixel.

A window has the input pixels that a tile of output pixels needs, each with the vectors of a channel block.
"""

from __future__ import annotations

from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.common.limits import MAX_BOX, MAX_EXTENT, MAX_INDEX, check_sizes
from cuconv.core.launch import INPUT, TensorMap
from cuconv.core.problem import HALF_BYTES, ConvProblem


def reach(problem: ConvProblem) -> tuple[int, int]:
    """The rows and columns that a filter covers with its dilation."""
    p = problem
    return (p.kh - 1) * p.dilation_h + 1, (p.kw - 1) * p.dilation_w + 1


def window_map(problem: ConvProblem, vectors: int, window: tuple[int, int, int], swizzle: int = 0) -> TensorMap:
    """The map by which a window is copied: (images, rows, columns), with so many vectors of each pixel."""
    p, pixel, (images, rows, columns) = problem, HALF_BYTES * problem.c, window
    strides = pixel, pixel * p.w, pixel * p.w * p.h
    box = VECTOR_CHANNELS * vectors, columns, rows, images
    return TensorMap(INPUT, p.precision, (p.c, p.w, p.h, p.n), strides, box, swizzle)


def check_window_sizes(problem: ConvProblem, algorithm: str, most_positions: int) -> None:
    """Raise UnsupportedProblem for sizes that an algorithm's copies and integers do not take."""
    p, (rows, columns) = problem, reach(problem)
    sizes = [
        ("filter positions", p.filter_area, most_positions),
        ("rows of the filter with its dilation", rows, MAX_BOX),
        ("columns of the filter with its dilation", columns, MAX_BOX),
        ("output pixels", p.n * p.out_pixels, MAX_INDEX // 2),
        ("rows of the padded image", p.padded_h, MAX_EXTENT),
        ("columns of the padded image", p.padded_w, MAX_EXTENT),
        ("channels", p.c, MAX_INDEX // 2),
    ]
    check_sizes(p, algorithm, sizes)
