"""Calls of kernels that are no convolution: ready calls, one for each signature of a thread, as in `call_cache`.

A call allocates the output and launches one kernel. While that compiles in the background, calls raise NotReady.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from torch import Tensor

from cuconv.call import NotReady
from cuconv.call_cache import ReadyCalls, is_captured, keep, warn_of_capture
from cuconv.core.launch import Launch
from cuconv.core.problem import UnsupportedProblem
from cuconv.device import DeviceSpec, device_spec
from cuconv.runtime import background, shutdown
from cuconv.runtime.arrays import library_of
from cuconv.runtime.driver import context_reader, made_current
from cuconv.runtime.launch_sequence import LaunchSequence, is_available


class Planned(NamedTuple):
    """A launch, and the output that it writes: (N, C, H, W), of a precision's type, channels last or contiguous."""

    launch: Launch
    output_shape: tuple[int, int, int, int]
    precision: str
    is_channels_last: bool


_thread = ReadyCalls()


def called(
    key: Hashable, planned: Callable[[DeviceSpec], Planned], input: Tensor, weight: int = 0, bias: int = 0
) -> Tensor:
    """The output of a kernel for an input on a GPU, on the current stream.

    key: the kernel's name, and what the plan depends on beside the input's shape, type and device. planned: makes the
    plan, for the first call. weight, bias: their addresses. Raises UnsupportedProblem as `planned` does, and NotReady
    while the kernel compiles.
    """
    key = (input.shape, input.dtype, input.device, key)
    call = _thread.ready_calls.get(key)
    if call is None:
        try:
            call = _Call(planned, input)
        except UnsupportedProblem as refusal:
            call = refusal
        keep(_thread.ready_calls, key, call)
    if isinstance(call, UnsupportedProblem):
        raise UnsupportedProblem(str(call))
    if shutdown.begun:
        shutdown.stop_daemons()
    if call.current_context() == call.context:
        return call(input, weight, bias)
    with made_current(call.device):
        return call(input, weight, bias)


class _Call:
    """The shared part of a signature's calls.

    is_stale   whether a call asks if the kernel is there: the first one, and the first after a job as of
               `background.StandIn`
    error      why the last job failed, or None
    """

    def __init__(self, planned: Callable[[DeviceSpec], Planned], input: Tensor):
        self._library, self.device = library_of(input), input.device.index
        spec = device_spec(self.device)
        plan = planned(spec)
        self._launch, self._arch = plan.launch, spec.arch
        self.is_stale = True
        self.error: Exception | None = None
        self.current_context = context_reader()
        with made_current(self.device):
            self.context = self.current_context()
        self._current_stream = self._library.current_stream(self.device)
        self._new_output = self._library.allocator(
            plan.output_shape, self.device, plan.precision, plan.is_channels_last
        )
        self._sequence: LaunchSequence | None = None

    def __call__(self, input: Tensor, weight: int, bias: int) -> Tensor:
        """The output of the launch; the call's context must be current."""
        if self._sequence is None:
            if not (self.is_stale and self._is_there()):
                if self.error is None and is_captured(self._library, input):
                    warn_of_capture()
                why = "is being compiled" if self.error is None else f"cannot be compiled: {self.error}"
                raise NotReady(f"the kernel {self._launch.kernel} {why}")
            self._sequence = LaunchSequence([self._launch], self._arch, self.device)
        output = self._new_output()
        self._sequence.enqueue(self._current_stream(), input.data_ptr(), weight, bias, output.data_ptr(), 0)
        return output

    def _is_there(self) -> bool:
        """Whether the kernel can be launched now; otherwise it begins to compile in the background."""
        variant = self._launch.variant(self._arch)
        if background.waits() or is_available(variant, self.device):
            return True
        self.is_stale, self.error = False, None
        background.compile_later([variant]).replaces(self)
        return False
