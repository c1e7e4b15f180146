"""Problems, devices and small helpers that the tests of several algorithms share."""

from dataclasses import replace

import pytest

from cuconv import ConvProblem
from cuconv.device import A100, H200, DeviceSpec
from harness.catalogue import load_sweep

ADA = DeviceSpec("NVIDIA L40S", (8, 9), 142)
DEVICES = [H200, A100, ADA]
each_device = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)

ODD = [
    ConvProblem(1, 1, 1, 1, 1, 1, 1),
    ConvProblem(5, 17, 32, 31, 1, 7, 7, 3, 3),
    ConvProblem(2, 3, 12, 9, 17, 3, 5, 0, 2),
    ConvProblem(1, 3, 4, 5, 2, 3, 3, 4, 4),
    ConvProblem(3, 65, 120, 5, 129, 5, 5),
    ConvProblem(1, 9001, 3, 5, 9, 1, 1),
]
PROBLEMS = [case.problem for case in load_sweep("paper", batches=[1, 8, 256]).cases] + ODD


each_precision = pytest.mark.parametrize("precision", ["fp32", "tf32"])


def in_precision(precision, problems):
    return [replace(problem, precision=precision) for problem in problems]


def one_by_one(c, m=64, hw=14, pad=0):
    return ConvProblem(n=1, c=c, h=hw, w=hw, m=m, kh=1, kw=1, pad_h=pad, pad_w=pad)


def launched(algorithm, problem, device=H200, aligned=True, relu=False):
    """The one launch of an algorithm."""
    (launch,) = algorithm.launches(problem, algorithm.configure(problem, device), aligned, relu)
    assert launch.source == algorithm.source and launch.kernel == algorithm.name
    return launch
