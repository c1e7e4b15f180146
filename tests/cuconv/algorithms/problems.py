"""Problems, devices and small helpers that the tests of several algorithms share."""

import re
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from cuconv import ConvProblem
from cuconv.core.launch import Launch
from cuconv.device import A100, H200, DeviceSpec
from tests.cuconv.layers import problems_of

ADA = DeviceSpec("NVIDIA L40S", (8, 9), 142)
DEVICES = [H200, A100, ADA]
each_device = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
each_precision = pytest.mark.parametrize("precision", ["fp32", "tf32"])

ODD = [
    ConvProblem(1, 1, 1, 1, 1, 1, 1),
    ConvProblem(5, 17, 32, 31, 1, 7, 7, 3, 3),
    ConvProblem(2, 3, 12, 9, 17, 3, 5, 0, 2),
    ConvProblem(1, 3, 4, 5, 2, 3, 3, 4, 4),
    ConvProblem(3, 65, 120, 5, 129, 5, 5),
    ConvProblem(1, 9001, 3, 5, 9, 1, 1),
    ConvProblem(2, 24, 31, 24, 40, 3, 3, stride_h=2, stride_w=2, more_h=1, more_w=1),  # as in autoencoders
    ConvProblem(3, 16, 1, 65, 24, 1, 3, pad_w=2, more_w=-2),  # causal
    ConvProblem(2, 8, 9, 12, 16, 3, 3, 1, 1, more_h=1, more_w=-1),
    ConvProblem(2, 8, 9, 12, 16, 1, 1, more_w=2),
]
PROBLEMS = problems_of("paper", (1, 8, 256)) + ODD

TYPICAL = ConvProblem(8, 96, 28, 28, 128, 3, 3, 1, 1)


def typical_problem(algorithm: str) -> ConvProblem:
    """A problem of middling size that an algorithm computes."""
    pointwise = {"kh": 1, "kw": 1, "pad_h": 0, "pad_w": 0}
    changes = {
        "tf32x3_shallow": {"c": 8, **pointwise},
        "fp16x3_pointwise": pointwise,
        "depthwise": {"groups": 96, "m": 96},
        "direct": {"m": 6},
        "plain_pointwise": {"c": 24, **pointwise},
        "nhwc_wgmma": {"precision": "fp16"},
        "nhwc_split": {"precision": "fp16"},
        "nhwc_depthwise": {"precision": "fp16", "groups": 96, "m": 96},
        "nhwc_grouped": {"precision": "fp16", "groups": 12, "m": 96},
        "nhwc_stem": {"precision": "fp16", "c": 3, "h": 112, "w": 112},
        "nhwc_window": {"precision": "fp16", "c": 24},
        "gemv": {"h": 7, "w": 7, "kh": 7, "kw": 7, "pad_h": 0, "pad_w": 0},
    }
    return replace(TYPICAL, **changes.get(algorithm, {}))


def in_precision(precision: str, problems: list[ConvProblem]) -> list[ConvProblem]:
    """The problems in another precision."""
    return [replace(problem, precision=precision) for problem in problems]


def one_by_one(c: int, m: int = 64, hw: int = 14, pad: int = 0) -> ConvProblem:
    """A problem of one image and a 1x1 filter."""
    return ConvProblem(n=1, c=c, h=hw, w=hw, m=m, kh=1, kw=1, pad_h=pad, pad_w=pad)


def assert_every_block_has_a_tile(problem: ConvProblem, config: Any, launch: Launch) -> None:
    """Check the grid of a configuration whose blocks compute tiles of the same filters in turns."""
    tiles, blocks = prod(config.tile.counts(problem)), launch.blocks // config.filter_blocks
    assert launch.blocks % config.filter_blocks == 0 and blocks <= tiles <= blocks * config.turns
    assert 1 <= config.stages <= config.turns and config.filter_blocks * config.filters >= problem.m


def arguments(launch: Launch) -> dict[str, Any]:
    """The arguments of a launch by the names of the kernel's parameters, the first of which is a tensor map."""
    declaration = rf"\b{launch.source.stem}\((const __grid_constant__[^{{]*)\) {{"
    (declared,) = re.findall(declaration, launch.source.read_text())
    return dict(zip((one.split()[-1] for one in declared.split(",")), launch.arguments, strict=True))
