"""The operands of a call: what may be passed, and the problem that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuconv import select
from cuconv.core.geometry import Geometry
from cuconv.core.launch import INPUT, WEIGHT, Launch, TensorMap
from cuconv.core.problem import HALVES, PRECISIONS, TF32, TF32_LAST, ConvProblem, UnsupportedProblem, shown
from cuconv.runtime.arrays import EITHER, LAST, CupyArrays, TorchArrays

# The rank of each operand, and what the message says about any other rank.
RANKS = {
    "input": (4, "4 are needed, NCHW, or 3 for one image"),
    "weight": (4, "4 are needed, (M, C / groups, KH, KW)"),
    "bias": (1, "1 is needed, (M,)"),
    "out": (4, "4 are needed, NCHW"),
    "residual": (4, "4 are needed, NCHW"),
}


MAP_ALIGNMENT = 16  # bytes, of a tensor that a tensor map is made of


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call writes: a tensor of its own, or a slice of a larger tensor's channels.

    channels: those of the tensor. sliced: whether the kernels write to a slice. copied: whether they write to temporary
    memory instead, which is then copied to the slice.
    """

    channels: int
    sliced: bool = False
    copied: bool = False


def checked(
    library: TorchArrays | CupyArrays, operands: dict[str, Any], geometry: Geometry, precision: str
) -> tuple[ConvProblem, int]:
    """The problem of operands, which are named by `named`, and the ordinal of their GPU.

    Raises TypeError for an operand of another library, and UnsupportedProblem for what cannot be computed.
    """
    check_operands(library, operands)
    input, weight = operands["input"], operands["weight"]
    precision = _precision_of(library, operands, precision)
    if precision in PRECISIONS and _are_last(library, operands, precision):
        precision = TF32_LAST
    problem = geometry.problem(tuple(map(int, input.shape)), tuple(map(int, weight.shape)), precision)
    _check_together(library, operands, problem, library.device(input))
    whole = problem.c * problem.element_bytes % MAP_ALIGNMENT == 0  # others may be padded ahead
    if problem.is_channels_last and whole:
        for name in ("input", "weight"):
            _check_start(library, operands, name)
    return problem, library.device(input)


def _precision_of(library: Any, operands: dict[str, Any], precision: str) -> str:
    """The precision of operands, which are of one type: `precision` for float32, and the type itself for the others."""
    element = library.element(operands["input"])
    for name, array in operands.items():
        if library.element(array) != element:
            raise UnsupportedProblem(f"{name} is {array.dtype}, input {operands['input'].dtype}: use one type")
    allowed = (element,) if element in HALVES else PRECISIONS
    if precision in allowed:
        return precision
    if element in HALVES and precision == PRECISIONS[0]:  # the default
        return element
    raise UnsupportedProblem(
        f"precision={shown(precision)} with operands of {operands['input'].dtype}: must be one of {', '.join(allowed)}"
    )


def _are_last(library: TorchArrays | CupyArrays, operands: dict[str, Any], precision: str) -> bool:
    """Whether input, weight and residual in float32 are in channels last, which takes TF32.

    Raises UnsupportedProblem where they differ, and in FP32.
    """
    layouts = {name: library.layout(operands[name]) for name in ("input", "weight", "residual") if name in operands}
    found = {layout: name for name, layout in layouts.items() if layout != EITHER}
    if LAST in found and precision != TF32:
        raise UnsupportedProblem(
            f"{found[LAST]} is float32 in channels last, which is computed with precision={TF32!r}, not {precision!r}: "
            "pass that, or call .contiguous()"
        )
    if len(found) > 1:
        one, other = found.items()
        raise UnsupportedProblem(f"{one[1]} is {one[0]}, {other[1]} {other[0]}: use one layout")
    return LAST in found


def check_maps(library: TorchArrays | CupyArrays, operands: dict[str, Any], launches: tuple[Launch, ...]) -> None:
    """Raise UnsupportedProblem where a launch has a tensor map of input or weight, and one of them starts as none may.

    Ready calls are kept by whether both do.
    """
    maps = (one for launch in launches for one in launch.arguments if isinstance(one, TensorMap))
    if {one.address.operand for one in maps} & {INPUT.operand, WEIGHT.operand}:
        for name in ("input", "weight"):
            _check_start(library, operands, name)


def _check_start(library: Any, operands: dict[str, Any], name: str) -> None:
    """Raise UnsupportedProblem where copies of 16 bytes cannot be of an operand."""
    if library.pointer(operands[name]) % MAP_ALIGNMENT:
        raise UnsupportedProblem(
            f"{name} does not start at a multiple of {MAP_ALIGNMENT} bytes, which channels last needs: clone it"
        )


def named(input: Any, weight: Any, bias: Any, out: Any, residual: Any) -> dict[str, Any]:
    """The operands by name, without a bias, an output or a residual that is None."""
    operands = {"input": input, "weight": weight, "bias": bias, "out": out, "residual": residual}
    return {name: array for name, array in operands.items() if array is not None or name in ("input", "weight")}


def check_operands(library: TorchArrays | CupyArrays, operands: dict[str, Any]) -> None:
    """Check each operand by itself: its library, rank, and what the library checks."""
    for name, array in operands.items():
        _check_operand(library, name, array, contiguous=name != "out")


def check_frozen(library: TorchArrays | CupyArrays, weight: Any, bias: Any) -> int:
    """Check weight and bias by themselves and together, in any layout; returns the ordinal of their GPU."""
    _check_operand(library, "weight", weight, contiguous=False)
    if bias is not None:
        _check_operand(library, "bias", bias, contiguous=False)
        _check_bias(bias, int(weight.shape[0]))
        if library.device(bias) != library.device(weight):
            raise UnsupportedProblem(
                f"bias is on GPU {library.device(bias)}, weight on GPU {library.device(weight)}: use one device"
            )
    return library.device(weight)


def _check_operand(library: Any, name: str, array: Any, contiguous: bool) -> None:
    """Check an operand by itself. contiguous: whether it must be."""
    if not library.owns(array):
        beside = "weight" if name == "bias" and not contiguous else "input"
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, {beside} a {library.kind}: "
            "use one library"
        )
    library.check_plain(name, array)
    rank, needed = RANKS[name]
    if len(array.shape) != rank:
        raise UnsupportedProblem(f"{name} has {len(array.shape)} dimensions {tuple(array.shape)}: {needed}")
    library.check(name, array, contiguous)


def _check_bias(bias: Any, filters: int) -> None:
    if tuple(bias.shape) != (filters,):
        raise UnsupportedProblem(
            f"bias has shape {tuple(bias.shape)}: it must be {(filters,)}, a value for each filter"
        )


def _check_together(library: Any, operands: dict[str, Any], problem: ConvProblem, device: int) -> None:
    """Check that all operands are on one GPU and that bias and output have the problem's shapes."""
    for name, array in operands.items():
        if library.device(array) != device:
            raise UnsupportedProblem(f"{name} is on GPU {library.device(array)}, input on GPU {device}: use one device")
    if "bias" in operands:
        _check_bias(operands["bias"], problem.m)
    for name in ("out", "residual"):
        if name in operands and tuple(operands[name].shape) != problem.output_shape:
            shape = tuple(operands[name].shape)
            raise UnsupportedProblem(f"{name} has shape {shape}: it must be {problem.output_shape}")


def target_of(
    library: TorchArrays | CupyArrays,
    operands: dict[str, Any],
    problem: ConvProblem,
    plan: select.LaunchPlan,
) -> Target:
    """Where a call of a plan writes, by the layout of `out`.

    Raises UnsupportedProblem where that is neither contiguous nor a slice of channels.
    """
    out = operands.get("out")
    if out is None:
        return Target(problem.m)
    strides = library.strides(out)
    channels = _channels_of(problem, strides)
    if channels is None:
        layout = "channels last" if problem.is_channels_last else "contiguous"
        raise UnsupportedProblem(
            f"out is neither {layout} nor a slice of the channels of such an array (strides {strides}): "
            "leave it out, or make it so"
        )
    if channels == problem.m:
        return Target(problem.m)
    direct = problem.is_channels_last or select.writes_slices(plan, "residual" in operands)
    return Target(channels, sliced=direct, copied=not direct)


def _channels_of(problem: ConvProblem, strides: tuple[int, ...]) -> int | None:
    """The channels of the dense array that an output of these strides is a slice of; None where there is none."""
    n, m, h, w = problem.output_shape
    if problem.is_channels_last:
        axes = ((w, strides[3], 1), (h, strides[2], w), (n, strides[0], h * w))  # (size, stride, pixels)
        channels = next((stride // pixels for size, stride, pixels in axes if size > 1), m)
        steps: tuple[int, ...] = (h * w * channels, 1, w * channels, channels)
    else:
        channels = strides[0] // (h * w) if n > 1 else m
        steps = (h * w * channels, h * w, w, 1)
    dense = zip(problem.output_shape, strides, steps, strict=True)
    return channels if channels >= m and all(size == 1 or stride == step for size, stride, step in dense) else None
