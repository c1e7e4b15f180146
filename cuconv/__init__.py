"""cuConv: convolutions of CNN inference on NVIDIA GPUs, for float32 tensors in NCHW."""

from cuconv.background import wait_for_kernels
from cuconv.call import NotReady
from cuconv.conv import algorithms, conv2d, plan
from cuconv.precompile import precompile
from cuconv.prepared import prepare
from cuconv.problem import ConvProblem, UnsupportedProblem

__all__ = [
    "ConvProblem",
    "NotReady",
    "UnsupportedProblem",
    "algorithms",
    "conv2d",
    "plan",
    "precompile",
    "prepare",
    "wait_for_kernels",
]
