"""cuConv: convolutions of CNN inference on NVIDIA GPUs, in float32 and NCHW, or half precision, channels last."""

import importlib.metadata

from cuconv.call import NotReady
from cuconv.conv import algorithms, conv1d, conv2d, plan
from cuconv.core.problem import ConvProblem, UnsupportedProblem
from cuconv.precompile import precompile
from cuconv.prepared import prepare
from cuconv.runtime.background import wait_for_kernels

__all__ = [
    "ConvProblem",
    "NotReady",
    "UnsupportedProblem",
    "__version__",
    "algorithms",
    "conv1d",
    "conv2d",
    "plan",
    "precompile",
    "prepare",
    "wait_for_kernels",
]

try:
    __version__ = importlib.metadata.version("cuconv")
except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"
