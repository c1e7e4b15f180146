"""cuConv: convolution for CNN inference on NVIDIA GPUs, float32, NCHW, stride 1, no data transformation."""

from cuconv.conv import algorithms, conv2d, plan
from cuconv.problem import ConvProblem, UnsupportedProblem

__all__ = ["ConvProblem", "UnsupportedProblem", "algorithms", "conv2d", "plan"]
