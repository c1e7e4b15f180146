"""Refusals that several algorithms share: sizes beyond a kernel's integers, other architectures, no room for a tile."""

from __future__ import annotations

from collections.abc import Sequence

from cuconv.device import DeviceSpec
from cuconv.problem import ConvProblem, UnsupportedProblem

MAX_INDEX = 2**31 - 1  # the kernels' integers


def check_sizes(problem: ConvProblem, algorithm: str, sizes: Sequence[tuple[str, int, int]]) -> None:
    """Raise UnsupportedProblem where one of (what, size, limit) is above its limit."""
    for what, size, limit in sizes:
        if size > limit:
            raise UnsupportedProblem(f"{problem.label}: {size} {what}, the limit of {algorithm} is {limit}")


def require_hopper(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a device without Hopper's own instructions (wgmma, bulk copies)."""
    if not device.is_hopper:
        raise UnsupportedProblem(
            f"{problem.label}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}"
        )


HOPPER_ARCH = "sm_90a"  # the only architecture with wgmma
