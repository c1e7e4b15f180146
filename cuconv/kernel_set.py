"""The closed set of kernel variants: all that "auto" may launch on an architecture, known without a GPU or a plan.

Most algorithms have few variants, which their modules enumerate. Of the others a file beside the CUDA source lists some
(`cuconv.algorithms.common.listed`). A named algorithm may launch others where the set has none for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import Macros
from cuconv.algorithms.common import add_residual, subsample
from cuconv.jit import Launch

Variant = tuple[Path, Macros]
"""A CUDA source and the macros that it is compiled with."""


@cache
def variants(arch: str) -> tuple[Variant, ...]:
    """Every kernel variant of the set for an architecture such as "sm_90a"."""
    found = [(algorithm.source, macros) for algorithm in ALGORITHMS.values() for macros in algorithm.variants(arch)]
    return (*found, *((kernel.SOURCE, macros) for kernel in (add_residual, subsample) for macros in kernel.variants()))


def holds(arch: str, launches: Iterable[Launch]) -> bool:
    """Whether all kernels of a call are of the set."""
    keys = _keys(arch)
    return all((launch.source, frozenset(launch.macros.items())) in keys for launch in launches)


@cache
def _keys(arch: str) -> frozenset[tuple[Path, frozenset[tuple[str, int]]]]:
    return frozenset((source, frozenset(macros.items())) for source, macros in variants(arch))
