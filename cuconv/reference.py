"""The reference for the kernels, in plain torch operations on any device: a float64 convolution and the two stages.

This module needs torch (`pip install torch`), which the rest of the library does not.
"""

from __future__ import annotations

from collections.abc import Iterator

try:
    import torch
    import torch.nn.functional as F
except ModuleNotFoundError as error:
    raise ImportError(
        "cuconv.reference computes with torch, which is not installed: run 'pip install torch'"
    ) from error

from cuconv.core.geometry import Geometry, Padding


def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding: Padding = 0,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    *,
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """The convolution in float64: input (N, C, H, W) and weight (M, C / groups, KH, KW) give (N, M, OH, OW).

    Each argument means what it means for `cuconv.conv2d`, but padding stands before the bias: write bias=. A bias (M,)
    is added, then ReLU is applied if asked for. The sum over filter positions of matrix products shares no code
    with a library's convolution. Raises UnsupportedProblem if input, weight and geometry do not fit.
    """
    if isinstance(padding, torch.Tensor):
        raise TypeError(
            "padding is a torch.Tensor: must be a whole number, a pair of them, ((top, bottom), (left, right)), 'same' "
            "or 'valid'; pass a bias as bias="
        )
    problem = Geometry(stride, padding, dilation, groups).problem(input.shape, weight.shape, "fp32")
    stride, dilation = (problem.stride_h, problem.stride_w), (problem.dilation_h, problem.dilation_w)
    rows, columns = problem.padding
    padded = F.pad(input.double(), (*columns, *rows))
    operands = zip(padded.chunk(groups, 1), weight.double().chunk(groups, 0), strict=True)
    output = torch.cat([_sum_of_products(*group, stride, dilation) for group in operands], 1)
    return _finished(output, bias, relu)


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 values rounded to the nearest TF32 number (11 bits); ties go to the larger magnitude.

    conv2d multiplies such values in precision "tf32", except that fp16x3 rounds to FP16 numbers with ties to even. NaN
    and infinities stay what they are.
    """
    rounded = (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def scalar_products(input: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """Stage one of the paper (section 3): the dot products of every filter row with the input, along the channels.

    Returns the temporary planes (KH*KW, N, M, OH, OW), in the dtype of the input.
    """
    pad_h, pad_w = padding
    return torch.stack(list(_scalar_products(F.pad(input, (pad_w, pad_w, pad_h, pad_h)), weight)))


def sum_planes(planes: torch.Tensor) -> torch.Tensor:
    """Stage two of the paper: the sum of planes (KH*KW, N, M, OH, OW) over the filter positions, (N, M, OH, OW)."""
    return planes.sum(0)


def two_stage(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding: tuple[int, int] = (0, 0),
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """The paper's algorithm, (N, M, OH, OW) in the dtype of the input; a 1x1 filter needs stage one only.

    The last stage adds the bias (M,) and applies ReLU.
    """
    planes = scalar_products(input, weight, padding)
    return _finished(planes[0] if len(planes) == 1 else sum_planes(planes), bias, relu)


def _finished(output: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """The output after bias and ReLU; a NaN is not negative and stays."""
    if bias is not None:
        output = output + bias.to(output.dtype)[:, None, None]
    return torch.where(output < 0, 0, output) if relu else output


def _sum_of_products(
    padded: torch.Tensor, weight: torch.Tensor, stride: tuple[int, int], dilation: tuple[int, int]
) -> torch.Tensor:
    """The convolution of one group of a padded input without bias: the sum of the planes of all filter positions."""
    planes = _scalar_products(padded, weight, stride, dilation)
    output = next(planes)
    for plane in planes:
        output += plane
    return output


def _scalar_products(
    padded: torch.Tensor,
    weight: torch.Tensor,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
) -> Iterator[torch.Tensor]:
    """The planes (N, M, OH, OW) of each filter position (ky, kx): its weights times the padded input shifted to it."""
    kh, kw = weight.shape[2:]
    rows, columns = padded.shape[2] - dilation[0] * (kh - 1), padded.shape[3] - dilation[1] * (kw - 1)
    for ky in range(kh):
        for kx in range(kw):
            top, left = ky * dilation[0], kx * dilation[1]
            shifted = padded[:, :, top : top + rows : stride[0], left : left + columns : stride[1]]
            products = torch.matmul(weight[:, :, ky, kx], shifted.flatten(2))
            yield products.unflatten(2, shifted.shape[2:])
