"""The closed set of kernel variants: all that "auto" may launch on an architecture, known without a GPU or a plan.

Most algorithms have few variants, which their modules enumerate. Of the others a file next to the CUDA source lists
some (`cuconv.algorithms.common.listed`). A named algorithm may launch others where the set has none for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.channels_last import max_pool, pad_channels
from cuconv.algorithms.common import finish_output, subsample
from cuconv.algorithms.planes import group_norm, nhwc_group_norm, nhwc_squeeze_excite, squeeze_excite
from cuconv.core.launch import KernelVariant, Launch


@cache
def variants(arch: str) -> tuple[KernelVariant, ...]:
    """Every kernel variant of the set for an architecture such as "sm_90a"."""
    found = [(algorithm.source, macros) for algorithm in ALGORITHMS.values() for macros in algorithm.variants(arch)]
    others = (finish_output, subsample, pad_channels, max_pool)
    found += [(kernel.SOURCE, macros) for kernel in others for macros in kernel.variants()]
    of_planes = (group_norm, squeeze_excite, nhwc_group_norm, nhwc_squeeze_excite)
    found += [(kernel.SOURCE, macros) for kernel in of_planes for macros in kernel.variants(arch)]
    return tuple(KernelVariant.of(source, arch, macros) for source, macros in found)


def holds(arch: str, launches: Iterable[Launch]) -> bool:
    """Whether all kernels of a call are of the set."""
    known = _known(arch)
    return all(launch.variant(arch) in known for launch in launches)


@cache
def _known(arch: str) -> frozenset[KernelVariant]:
    return frozenset(variants(arch))
