"""conv2d: checks, then a plan, then its launches."""

from __future__ import annotations

from math import prod
from typing import Any

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.arrays import library_of
from cuconv.device import DeviceSpec, device_spec
from cuconv.jit import Launcher
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem


def algorithms() -> tuple[str, ...]:
    """The names that conv2d takes as `algorithm`, besides "auto"."""
    return tuple(ALGORITHMS)


def plan(problem: ConvProblem, device: DeviceSpec | int | None = None, algorithm: str = "auto") -> select.LaunchPlan:
    """What conv2d would launch for a problem: printable, with its `workspace_bytes`; nothing runs.

    device is a DeviceSpec, a GPU's ordinal, or None for the current GPU. Raises as conv2d does.
    """
    if device is None:
        import cupy

        device = cupy.cuda.Device().id
    return select.plan(problem, device_spec(device) if isinstance(device, int) else device, algorithm)


def conv2d(
    input: Any,
    weight: Any,
    *,
    padding: int | str | tuple[int, int] = 0,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Convolution of CNN inference: stride 1, float32, contiguous NCHW, on a GPU.

    input   (N, C, H, W), weight (M, C, KH, KW): torch CUDA tensors, or CuPy arrays, of one device
    padding rows and columns of zeros on each side: a number, (vertical, horizontal), "valid" (none) or
            "same" (odd filters: the output has the input's size)
    out     optional (N, M, OH, OW) to write to, apart from input and weight in memory

    Returns (N, M, OH, OW), OH = H + 2*pad - KH + 1, of the same library, enqueued on its current stream;
    after a first call of the same shape it can be captured in a CUDA graph. Nothing is copied; temporary
    memory comes from the same library (`plan(...)` says how much). Raises before any launch: TypeError for
    other kinds of array, UnsupportedProblem (a ValueError) for what cannot be computed, ValueError for an
    unknown algorithm.
    """
    library = library_of(input)
    operands = {"input": input, "weight": weight} | ({} if out is None else {"out": out})
    for name, array in operands.items():
        _check_operand(library, name, array)
    problem = _problem(input.shape, weight.shape, padding)
    device = library.device(input)
    _check_together(library, operands, problem, device)
    launch_plan = plan(problem, device, algorithm)

    output = library.empty(problem.output_shape, device) if out is None else out
    workspace = None
    if launch_plan.workspace_bytes:
        workspace = library.empty((-(-launch_plan.workspace_bytes // FLOAT_BYTES),), device)
    launcher = Launcher(device_spec(device).arch, device, library.stream(device))
    with _current_device(device):
        ALGORITHMS[launch_plan.algorithm].launch(
            problem,
            launch_plan.config,
            launcher,
            library.pointer(input),
            library.pointer(weight),
            library.pointer(output),
            0 if workspace is None else library.pointer(workspace),
        )
    return output


def _check_operand(library: Any, name: str, array: Any) -> None:
    if not library.owns(array):
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, input a {library.kind}: use one library"
        )
    if len(array.shape) != 4:
        layout = "(M, C, KH, KW)" if name == "weight" else "NCHW"
        raise UnsupportedProblem(
            f"{name} has {len(array.shape)} dimensions {tuple(array.shape)}: 4 are needed, {layout}"
        )
    library.check(name, array)


def _problem(input_shape: Any, weight_shape: Any, padding: int | str | tuple[int, int]) -> ConvProblem:
    n, c, h, w = map(int, input_shape)
    m, weight_c, kh, kw = map(int, weight_shape)
    if weight_c != c:
        raise UnsupportedProblem(
            f"weight has {weight_c} channels, input {c}: they must be equal (groups are not supported)"
        )
    return ConvProblem(n, c, h, w, m, kh, kw, *_pads(padding, kh, kw))


def _pads(padding: int | str | tuple[int, int], kh: int, kw: int) -> tuple[int, int]:
    if padding == "valid":
        return 0, 0
    if padding == "same":
        if kh % 2 == 0 or kw % 2 == 0:
            raise UnsupportedProblem(
                f"padding='same' with a filter of {kh}x{kw}: only odd sizes have equal padding on both sides"
            )
        return kh // 2, kw // 2
    pads = (padding, padding) if isinstance(padding, int) else padding
    if isinstance(pads, (tuple, list)) and len(pads) == 2 and all(type(pad) is int for pad in pads):
        return pads[0], pads[1]
    raise UnsupportedProblem(f"padding={padding!r}: must be a whole number, a pair of them, 'same' or 'valid'")


def _check_together(library: Any, operands: dict[str, Any], problem: ConvProblem, device: int) -> None:
    """One device for all, and an output of the right shape that shares no memory with what is read."""
    for name, array in operands.items():
        if library.device(array) != device:
            raise UnsupportedProblem(f"{name} is on GPU {library.device(array)}, input on GPU {device}: use one device")
    if "out" not in operands:
        return
    if tuple(operands["out"].shape) != problem.output_shape:
        raise UnsupportedProblem(f"out has shape {tuple(operands['out'].shape)}: it must be {problem.output_shape}")
    start, end = _extent(library, operands["out"])
    for name in ("input", "weight"):
        other_start, other_end = _extent(library, operands[name])
        if start < other_end and other_start < end:
            raise UnsupportedProblem(f"out overlaps {name} in memory: give it memory of its own")


def _extent(library: Any, array: Any) -> tuple[int, int]:
    start = library.pointer(array)
    return start, start + FLOAT_BYTES * prod(array.shape)


def _current_device(device: int) -> Any:
    import cupy

    return cupy.cuda.Device(device)
