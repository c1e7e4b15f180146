"""Max pooling by cuConv's kernel, for tensors in half precision and channels_last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cuconv.algorithms.channels_last import max_pool
from cuconv.algorithms.channels_last.max_pool import MaxPool
from cuconv.call_cache import ALIGNMENT
from cuconv.core.launch import KernelVariant
from cuconv.core.problem import BF16, UnsupportedProblem
from cuconv.device import DeviceSpec
from cuconv.nn.formats import HALVES
from cuconv.nn.kernel_call import Planned, called


def pool_kernels(types: Iterable[torch.dtype], arch: str) -> list[KernelVariant]:
    """The kernel variants that pool tensors of these types, in half precision."""
    halves = [HALVES[dtype] for dtype in types if dtype in HALVES]
    return [KernelVariant.of(max_pool.SOURCE, arch, {"BF16": int(half == BF16)}) for half in halves]


def pooled(
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The maxima of the windows of a CUDA tensor, on the current stream. Each sequence has two numbers.

    Raises UnsupportedProblem for what the kernel does not compute, and NotReady, which is one, while it compiles.
    """
    if not input.is_contiguous(memory_format=torch.channels_last) or input.data_ptr() % ALIGNMENT or input.is_neg():
        raise UnsupportedProblem("max pooling takes plain images in channels_last that start at a multiple of 16 bytes")
    geometry = (tuple(kernel_size), tuple(stride), tuple(padding), tuple(dilation), ceil_mode)

    def planned(device: DeviceSpec) -> Planned:
        precision, shape = HALVES.get(input.dtype, str(input.dtype)), tuple(input.shape)
        pool = MaxPool(precision, shape, *geometry)  # type: ignore[arg-type]
        return Planned(max_pool.launch(pool, device.has_dependent_launch), pool.output_shape, precision, True)

    return called(("max_pool", *geometry), planned, input)
