"""Max pooling by cuConv's kernel: ready calls, one for each signature of a thread, as `cuconv.call_cache` has them.

A call allocates the output and launches one kernel. While that compiles in the background, calls raise NotReady.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from cuconv.algorithms.channels_last import max_pool
from cuconv.algorithms.channels_last.max_pool import MaxPool
from cuconv.call import NotReady
from cuconv.call_cache import ALIGNMENT, is_captured, keep, warn_of_capture
from cuconv.core.launch import KernelVariant
from cuconv.core.problem import BF16, UnsupportedProblem
from cuconv.device import device_spec
from cuconv.nn.formats import HALVES
from cuconv.runtime import background, shutdown
from cuconv.runtime.arrays import library_of
from cuconv.runtime.driver import context_reader, made_current
from cuconv.runtime.launch_sequence import LaunchSequence, is_available


def pool_kernels(types: Iterable[torch.dtype], arch: str) -> list[KernelVariant]:
    """The kernel variants that pool tensors of these types, in half precision."""
    halves = [HALVES[dtype] for dtype in types if dtype in HALVES]
    return [KernelVariant.of(max_pool.SOURCE, arch, {"BF16": int(half == BF16)}) for half in halves]


class _Thread(threading.local):
    """The ready calls of a thread, which writes to memory that they own."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, _Call] = {}
        if threading.current_thread().daemon:
            shutdown.watch()


_thread = _Thread()


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
    key = (input.shape, input.dtype, input.device, geometry)
    call = _thread.ready_calls.get(key)
    if call is None:
        precision, shape = HALVES.get(input.dtype, str(input.dtype)), tuple(input.shape)
        call = _Call(MaxPool(precision, shape, *geometry), input)  # type: ignore[arg-type]
        keep(_thread.ready_calls, key, call)
    if shutdown.begun:
        shutdown.stop_daemons()
    if call.current_context() == call.context:
        return call(input)
    with made_current(call.device):
        return call(input)


class _Call:
    """The shared part of a signature's calls. `background.Job` sets `is_stale` once the kernel is there, or `error`."""

    def __init__(self, pool: MaxPool, input: Tensor):
        self._library, self.device = library_of(input), input.device.index
        spec = device_spec(self.device)
        self._launch, self._arch = max_pool.launch(pool, spec.has_dependent_launch), spec.arch
        self.is_stale = False
        self.error: Exception | None = None
        self.current_context = context_reader()
        with made_current(self.device):
            self.context = self.current_context()
        self._current_stream = self._library.current_stream(self.device)
        self._new_output = self._library.allocator(pool.output_shape, self.device, pool.precision, True)
        self._sequence: LaunchSequence | None = None
        variant = self._launch.variant(self._arch)
        if background.waits() or is_available(variant, self.device):
            self.is_stale = True
        else:
            background.compile_later([variant]).replaces(self)

    def __call__(self, input: Tensor) -> Tensor:
        """The output of the launch; the call's context must be current."""
        if self._sequence is None:
            if not self.is_stale:
                if self.error is None and is_captured(self._library, input):
                    warn_of_capture()
                why = "is being compiled" if self.error is None else f"cannot be compiled: {self.error}"
                raise NotReady(f"the kernel of max pooling {why}")
            self._sequence = LaunchSequence([self._launch], self._arch, self.device)
        output = self._new_output()
        self._sequence.enqueue(self._current_stream(), input.data_ptr(), 0, 0, output.data_ptr(), 0)
        return output
