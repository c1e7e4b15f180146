"""cuConv: convolutions of CNN inference on NVIDIA GPUs, for float32 tensors in NCHW with stride 1."""

from cuconv.conv import algorithms, conv2d, plan
from cuconv.problem import ConvProblem, UnsupportedProblem

__all__ = ["ConvProblem", "UnsupportedProblem", "algorithms", "conv2d", "plan"]
