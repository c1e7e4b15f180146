"""Checks that several algorithms share: sizes beyond a kernel's integers, and GPUs without its instructions."""

from __future__ import annotations

from collections.abc import Iterable

from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem, UnsupportedProblem

MAX_INDEX = 2**31 - 1  # kernels count in 32-bit integers
HOPPER_ARCH = "sm_90a"  # the only architecture with wgmma; DeviceSpec.arch of a Hopper GPU


def check_sizes(problem: ConvProblem, algorithm: str, sizes: Iterable[tuple[str, int, int]]) -> None:
    """Raise UnsupportedProblem for the first of the (what, size, limit) whose size exceeds its limit."""
    for what, size, limit in sizes:
        if size > limit:
            raise UnsupportedProblem(f"{problem.label}: {size} {what}, the limit of {algorithm} is {limit}")


def require_hopper(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a GPU without Hopper's own instructions: wgmma and bulk copies."""
    if not device.is_hopper:
        raise UnsupportedProblem(
            f"{problem.label}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}"
        )
