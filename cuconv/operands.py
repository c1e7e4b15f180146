"""The operands of a call: what may be passed, and the problem that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuconv import select
from cuconv.core.geometry import Geometry
from cuconv.core.problem import ConvProblem, UnsupportedProblem
from cuconv.runtime.arrays import CupyArrays, TorchArrays

# The rank of each operand, and what the message says about any other rank.
RANKS = {
    "input": (4, "4 are needed, NCHW, or 3 for one image"),
    "weight": (4, "4 are needed, (M, C / groups, KH, KW)"),
    "bias": (1, "1 is needed, (M,)"),
    "out": (4, "4 are needed, NCHW"),
    "residual": (4, "4 are needed, NCHW"),
}


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
    problem = geometry.problem(tuple(map(int, input.shape)), tuple(map(int, weight.shape)), precision)
    _check_together(library, operands, problem, library.device(input))
    return problem, library.device(input)


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
    library: TorchArrays | CupyArrays, operands: dict[str, Any], problem: ConvProblem, plan: select.LaunchPlan
) -> Target:
    """Where a call of a plan writes, by the layout of `out`.

    Raises UnsupportedProblem where that is neither contiguous nor a slice of channels.
    """
    out, plane = operands.get("out"), problem.out_pixels
    if out is None:
        return Target(problem.m)
    strides = library.strides(out)
    steps = zip(problem.output_shape[1:], strides[1:], (plane, problem.out_w, 1), strict=True)
    image = strides[0] if problem.n > 1 else problem.m * plane
    if any(size > 1 and stride != step for size, stride, step in steps) or image < problem.m * plane or image % plane:
        raise UnsupportedProblem(
            f"out is neither contiguous nor a slice of the channels of a contiguous array (strides {strides}): "
            "leave it out, or make it so"
        )
    if image == problem.m * plane:
        return Target(problem.m)
    direct = select.writes_slices(plan, "residual" in operands)
    return Target(image // plane, sliced=direct, copied=not direct)
