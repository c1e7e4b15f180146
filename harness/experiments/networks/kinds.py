"""Kernels by kind: the part of a network that a kernel computes, by its name."""

from __future__ import annotations

from collections.abc import Sequence

KINDS = ("convolution", "pooling", "elementwise", "gemm", "other")
_OURS = {
    "finish_output": "elementwise", "tf32x3_gemm": "convolution", "direct": "convolution",
    "plain_pointwise": "convolution",
    "nhwc_group_norm": "other", "nhwc_squeeze_excite": "other",
}  # fmt: skip
_PARTS = {  # parts of names in lower case: the first kind with a part in the name counts
    "pooling": ("pool", "meanops"),
    "elementwise": ("elementwise", "triton_poi", "bn_fw", "batch_norm", "batchnorm"),
    "convolution": (
        "conv", "cudnn", "fprop", "dgrad", "winograd", "fft", "im2col", "tf32x3", "fp16x3", "depthwise", "scalar_prods",
        "sum_planes", "pack_weights", "subsample", "wait_for_kernel_ahead", "nhwc_", "pad_channels",
    ),
    "gemm": ("gemm", "gemv", "splitk", "cublas", "nvjet", "triton_mm", "triton_tem"),
}  # fmt: skip


def by_kind(launches: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """The microseconds of each launch, by kind in the order of KINDS; kinds without a launch are left out."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for name, us in launches:
        found[kind_of(name)].append(us)
    return {kind: times for kind, times in found.items() if times}


def kind_of(kernel: str) -> str:
    """The kind of a kernel, one of KINDS, by its name. A library's 1x1 convolution may be called a gemm."""
    base = kernel.removeprefix("void ").partition("<")[0].partition("(")[0].strip()
    if base in _OURS:
        return _OURS[base]
    name = kernel.lower()
    return next((kind for kind, parts in _PARTS.items() if any(part in name for part in parts)), "other")
