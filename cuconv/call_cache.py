"""The ready call for a call of conv2d: found among those that were made before, or made.

The first call of a signature checks its operands, plans, and loads the kernels. The result is kept under a key that
holds everything it depends on: shapes, dtypes, devices, alignment and options. Every later call with the same key costs
the host a few microseconds besides the allocation and the launches.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.implicit_gemm import VECTOR_FLOATS
from cuconv.call import Call, Layer, Options, Packing, PendingCall
from cuconv.core.activation import Activation
from cuconv.core.geometry import Geometry
from cuconv.core.launch import Address, KernelVariant, Launch
from cuconv.core.problem import ConvProblem
from cuconv.device import device_spec
from cuconv.operands import Target, check_maps, check_operands, checked, named, target_of
from cuconv.runtime import background, shutdown
from cuconv.runtime.arrays import CupyArrays, TorchArrays
from cuconv.runtime.driver import capture_of, made_current
from cuconv.runtime.launch_sequence import LaunchSequence, is_available

MAX_READY_CALLS = 4096  # a thread keeps no more
ALIGNMENT = 16  # bytes; some kernels have a faster variant for operands that all start at a multiple of it


class ReadyCalls(threading.local):
    """The ready calls of a thread. Threads do not share them, because a call writes to memory that it owns."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, Any] = {}
        if threading.current_thread().daemon:
            shutdown.watch()


_thread = ReadyCalls()


def convolve(
    library: TorchArrays | CupyArrays,
    options: Hashable,
    input: Any,
    weight: Any,
    bias: Any,
    out: Any,
    residual: Any,
    layer: Layer | None = None,
) -> Any:
    """The convolution of operands by the ready call for them, which is made if there is none.

    options: `Options` as a plain tuple, which is quicker to make; with a layer, an object that stands for the layer's
    own options. layer: whose constant weights these are.
    """
    try:
        signature, pointer = library.signature, library.pointer
        read = addresses = pointer(input) | pointer(weight)
        out_signature = residual_signature = None
        if out is not None:
            addresses |= pointer(out)
            out_signature = library.output_signature(out)
        if residual is not None:
            addresses |= pointer(residual)
            residual_signature = signature(residual)
        aligned = addresses % ALIGNMENT == 0  # a new output is always aligned
        key = (options, signature(input), out_signature, residual_signature, aligned, aligned or read % ALIGNMENT == 0)
        call = _thread.ready_calls.get(key)
    except Exception:
        refuse(library, named(input, weight, bias, out, residual), _options_of(options, layer))
        raise
    if call is None or not call.is_final:
        if len(input.shape) == 3:
            batch_out = None if out is None else out[None]
            batch_residual = None if residual is None else residual[None]
            batch = convolve(library, options, input[None], weight, bias, batch_out, batch_residual, layer)
            return batch[0] if out is None else out
        if call is None or _is_due(call, library, input):
            operands = named(input, weight, bias, out, residual)
            try:
                call = _new_call(library, operands, aligned, _options_of(options, layer), layer is not None)
            except Exception as error:
                call = _kept_after(error, call)
            keep(_thread.ready_calls, key, call)
        if not call.is_final and call.error is None and is_captured(library, input):
            warn_of_capture()
    if shutdown.begun:
        shutdown.stop_daemons()
    if call.current_context() == call.context:
        return call(input, weight, bias, out, residual, layer)
    assert isinstance(call, Call)
    with made_current(call.device):
        return call(input, weight, bias, out, residual, layer)


def _options_of(options: Any, layer: Layer | None) -> Options:
    return Options(*(options if layer is None else layer.options))


def _is_due(call: Call | PendingCall, library: TorchArrays | CupyArrays, array: Any) -> bool:
    """Whether a stand-in is to be made again. Not in a capture, which forbids the packing of weights."""
    if not (call.is_stale or background.waits() or library.wants_equal_bits()):
        return False
    return not is_captured(library, array)


def is_captured(library: TorchArrays | CupyArrays, array: Any) -> bool:
    """Whether a CUDA graph captures the current stream of an array's GPU."""
    device = library.device(array)
    with made_current(device):
        return capture_of(library.current_stream(device)()) != 0


@cache
def warn_of_capture() -> None:
    warnings.warn(
        "a CUDA graph captures a slower kernel and keeps it, since the fastest one of cuConv was not ready: before a "
        "capture call once, then cuconv.wait_for_kernels(), and call once more",
        stacklevel=4,
    )


def _kept_after(error: Exception, call: Call | PendingCall | None) -> Call:
    """The stand-in, with a warning, where the call that is to replace it cannot be made; raises the error elsewhere."""
    if not isinstance(call, Call):
        raise error
    warnings.warn(f"a call of cuConv keeps its slower kernels, as faster ones fail: {error}", stacklevel=4)
    call.is_final = True
    return call


def refuse(library: TorchArrays | CupyArrays, operands: dict[str, Any], options: Options) -> None:
    """Raise what is wrong with operands or names of which no key can be made."""
    check_operands(library, operands)
    select.check_options(options.algorithm, options.precision)


def _new_call(
    library: TorchArrays | CupyArrays, operands: dict[str, Any], aligned: bool, options: Options, constant: bool
) -> Call | PendingCall:
    """The ready call for operands and options: checks them, plans, and loads the kernels.

    Where kernels of the plan must be compiled first, that happens in the background, and the call is of the next best
    plan whose kernels are there. A call waits for its kernels if
    - it names an algorithm other than "auto" and "ready"
    - equal bits are wanted, or `background.waiting` is entered
    - it is "auto", and there is no such plan. One of "ready" is `PendingCall` then.

    constant: whether weight and bias are those of a layer.
    """
    geometry = Geometry(options.stride, options.padding, options.dilation, options.groups)
    problem, device = checked(library, operands, geometry, options.precision)
    spec, residual = device_spec(device), "residual" in operands
    builder = _CallBuilder(library, operands, problem, device, aligned, options.activation, constant)
    in_vectors = aligned and builder.images_aligned
    best = builder.kernels(select.plan(problem, spec, options.algorithm, constant, residual, in_vectors))
    missing = builder.missing(best)
    waits = options.algorithm not in ("auto", select.READY) or background.waits() or library.wants_equal_bits()
    if waits or not missing:
        return builder.call(best)
    others = (builder.kernels(plan) for plan in select.alternatives(problem, spec, constant, residual, in_vectors))
    found = next((kernels for kernels in others if not builder.missing(kernels)), None)
    if found is None and options.algorithm == "auto":
        _warn_of_waiting()
        return builder.call(best)
    call = PendingCall() if found is None else builder.call(found)
    call.is_final = False
    background.compile_later(missing).replaces(call)
    return call


@cache
def _warn_of_waiting() -> None:
    warnings.warn(
        "a call of cuConv waits until its kernels are compiled: cuconv.precompile(problems) compiles them ahead",
        stacklevel=5,
    )


class _Kernels(NamedTuple):
    """A plan with where its calls write, their launches, and the launch that packs constant weights."""

    plan: select.LaunchPlan
    target: Target
    launches: tuple[Launch, ...]
    once: Launch | None


@dataclass(frozen=True, slots=True)
class _CallBuilder:
    """Makes the ready call of a plan, for operands that have been checked."""

    library: TorchArrays | CupyArrays
    operands: dict[str, Any]
    problem: ConvProblem
    device: int
    aligned: bool
    activation: Activation
    constant: bool  # whether weight and bias are those of a layer

    @property
    def images_aligned(self) -> bool:
        """Whether every image of a slice is aligned if the first is; an output of its own is not judged by that."""
        if "out" not in self.operands:
            return True
        if self.problem.is_channels_last:
            return True  # its kernels look at the channels themselves
        stride = self.library.strides(self.operands["out"])[0]
        return stride == prod(self.problem.output_shape[1:]) or stride % VECTOR_FLOATS == 0

    def kernels(self, plan: select.LaunchPlan) -> _Kernels:
        """The launches of a plan for these operands; raises UnsupportedProblem for operands that they cannot read."""
        target = target_of(self.library, self.operands, self.problem, plan)
        output_channels = target.channels if target.sliced else None
        wanted = CallOptions(
            self.aligned, self.activation, "residual" in self.operands, output_channels, self.constant,
            device_spec(self.device).has_dependent_launch,
        )  # fmt: skip
        algorithm = ALGORITHMS[plan.algorithm]
        once = algorithm.packing_launch(self.problem, plan.config, wanted) if self.constant else None
        launches = select.launches_of(plan, self.problem, wanted)
        check_maps(self.library, self.operands, launches)
        return _Kernels(plan, target, launches, once)

    def missing(self, kernels: _Kernels) -> list[KernelVariant]:
        """The kernels that must be compiled first."""
        arch, once = device_spec(self.device).arch, [] if kernels.once is None else [kernels.once]
        variants = [launch.variant(arch) for launch in (*kernels.launches, *once)]
        return [variant for variant in variants if not is_available(variant, self.device)]

    def call(self, kernels: _Kernels) -> Call:
        """The ready call of a plan; compiles the kernels that are missing."""
        plan, target, launches, once = kernels
        arch, size, workspace_bytes = device_spec(self.device).arch, 0, plan.workspace_bytes
        packing = ALGORITHMS[plan.algorithm].packing(self.problem, plan.config) if self.constant else None
        if packing is not None:
            size = packing.workspace_bytes(self.problem)
            workspace_bytes = workspace_beside(launches, workspace_bytes, size)
        with made_current(self.device):
            sequence = LaunchSequence(launches, arch, self.device)
            how = None
            if packing is not None and once is not None:
                how = Packing((plan.algorithm, packing), size, LaunchSequence([once], arch, self.device))
            return Call(self.library, self.problem, self.device, sequence, workspace_bytes, target, how)


def workspace_beside(launches: tuple[Launch, ...], workspace_bytes: int, packed_bytes: int) -> int:
    """The bytes of workspace that launches need besides packed weights; all, where one has a fixed place in it."""
    arguments = [argument for launch in launches for argument in launch.arguments]
    fixed = any(isinstance(argument, Address) and argument.offset for argument in arguments)
    return workspace_bytes if fixed else workspace_bytes - packed_bytes


def forget() -> None:
    """Drop all plans and this thread's ready calls: the next call of each signature is then a first one."""
    select.plan.cache_clear()
    _thread.ready_calls.clear()


def keep(ready_calls: dict[Hashable, Any], key: Hashable, call: Any) -> None:
    """Keep a ready call; beyond MAX_READY_CALLS the one that was made first is dropped."""
    if len(ready_calls) >= MAX_READY_CALLS and key not in ready_calls:
        with suppress(RuntimeError):  # a call of a signal handler was first
            ready_calls.pop(next(iter(ready_calls)), None)
    ready_calls[key] = call
