"""What the kernels must compute, in plain torch operations on any device: the float64 truth, and the two stages."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding: tuple[int, int] = (0, 0),
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """The convolution in float64: (N, C, H, W) with (M, C, KH, KW) to (N, M, OH, OW), plus a bias (M,), then ReLU.

    A sum over filter positions of matrix products, so that it shares no code with a library's convolution.
    """
    planes = _scalar_products(input.double(), weight.double(), padding)
    output = next(planes)
    for plane in planes:
        output += plane
    return _finished(output, bias, relu)


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 values rounded to nearest as TF32 numbers, 11 bits; of two that are as near the larger magnitude.

    What conv2d multiplies in precision "tf32"; as FP16 numbers, in fp16x3, ties go to even. NaN and infinities stay.
    """
    rounded = (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def scalar_products(input: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """Stage one of the paper (section 3): every dot product of a filter row with the input rows that meet it.

    Returns the temporary planes, (KH*KW, N, M, OH, OW), in the dtype of the input.
    """
    return torch.stack(list(_scalar_products(input, weight, padding)))


def sum_planes(planes: torch.Tensor) -> torch.Tensor:
    """Stage two: (KH*KW, N, M, OH, OW) summed over the filter positions to (N, M, OH, OW)."""
    return planes.sum(0)


def two_stage(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding: tuple[int, int] = (0, 0),
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """The paper's algorithm as a whole; for a 1x1 filter stage one gives the output itself.

    The last stage adds the bias (M,) and applies ReLU, all in the dtype of the input.
    """
    planes = scalar_products(input, weight, padding)
    return _finished(planes[0] if len(planes) == 1 else sum_planes(planes), bias, relu)


def _finished(output: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """What follows the sum: the filter's bias, then 0 for what is negative; a NaN is not, and stays."""
    if bias is not None:
        output = output + bias.to(output.dtype)[:, None, None]
    return torch.where(output < 0, 0, output) if relu else output


def _scalar_products(input: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int]):
    """One plane set (N, M, OH, OW) for each filter position: weights at (ky, kx) times the input shifted by it."""
    pad_h, pad_w = padding
    kh, kw = weight.shape[2:]
    padded = F.pad(input, (pad_w, pad_w, pad_h, pad_h))
    out_h, out_w = padded.shape[2] - kh + 1, padded.shape[3] - kw + 1
    for ky in range(kh):
        for kx in range(kw):
            shifted = padded[:, :, ky : ky + out_h, kx : kx + out_w]
            rows = torch.matmul(weight[:, :, ky, kx], shifted.flatten(2))
            yield rows.unflatten(2, (out_h, out_w))
