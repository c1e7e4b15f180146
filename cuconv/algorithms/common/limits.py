"""Checks that algorithms share: sizes beyond a kernel's integers, GPUs without its instructions, no tile that fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from cuconv.core.problem import ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

MAX_INDEX = 2**31 - 1  # kernels count in 32-bit integers
MAX_BOX = 256  # elements of a tensor map's box on each axis
MAX_EXTENT = 2**30  # rows, columns, or elements of a row, of a padded image
HOPPER_ARCH = "sm_90a"  # the only architecture with wgmma; DeviceSpec.arch of a Hopper GPU

Config = TypeVar("Config")


def check_sizes(problem: ConvProblem, algorithm: str, sizes: Iterable[tuple[str, int, int]]) -> None:
    """Raise UnsupportedProblem for the first of the (what, size, limit) whose size exceeds its limit."""
    for what, size, limit in sizes:
        if size > limit:
            raise UnsupportedProblem(f"{problem.label}: {size} {what}, the limit of {algorithm} is {limit}")


def require_dense(problem: ConvProblem, algorithm: str) -> None:
    """Raise UnsupportedProblem for a stride, a dilation or groups above 1."""
    if not problem.is_dense:
        raise UnsupportedProblem(f"{problem.label}: {algorithm} computes stride 1, dilation 1 and one group only")


def require_hopper(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a GPU without Hopper's own instructions: wgmma and bulk copies."""
    if not device.is_hopper:
        raise UnsupportedProblem(
            f"{problem.label}: needs the instructions of {HOPPER_ARCH}, {device.name} is {device.arch}"
        )


def require_fit(found: list[Config], problem: ConvProblem, device: DeviceSpec, algorithm: str) -> list[Config]:
    """The configurations found; raises UnsupportedProblem where there is none, as no tile fits shared memory."""
    if found:
        return found
    raise UnsupportedProblem(
        f"{problem.label}: no tile of {algorithm} with its {problem.kh}x{problem.kw} filter fits "
        f"the {device.shared_bytes_per_block} bytes of shared memory of {device.name}"
    )
