"""The launch that adds a residual and computes the activation, after an algorithm whose own kernels add none."""

from __future__ import annotations

from math import ceil, prod
from pathlib import Path

from cuconv.algorithms.common.limits import MAX_INDEX
from cuconv.algorithms.common.subsample import LAUNCH_US, US_PER_MIB
from cuconv.core.activation import Activation
from cuconv.core.launch import OUTPUT, RESIDUAL, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 256
VECTOR = 4  # floats of a load of 16 bytes


def finish_output(problem: ConvProblem, aligned: bool, activation: Activation, overlap: bool) -> Launch:
    """The launch of output = activation(output + residual).

    aligned: whether output and residual start at a multiple of 16 bytes. overlap: whether the GPU has programmatic
    dependent launch, as from compute capability 9.0 on. Raises UnsupportedProblem for an output of more elements than a
    grid counts.
    """
    elements = prod(problem.output_shape)
    vector = VECTOR if aligned and elements % VECTOR == 0 else 1
    blocks = ceil(elements / (vector * THREADS))
    if blocks > MAX_INDEX:
        raise UnsupportedProblem(f"{problem.label}: {elements} outputs are more than the grid of a last kernel counts")
    arguments = (RESIDUAL, OUTPUT, elements, activation.kind, activation.packed_numbers)
    return Launch(SOURCE, {"VECTOR": vector}, "finish_output", blocks, THREADS, arguments, overlap=overlap)


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{"VECTOR": vector} for vector in (1, VECTOR)]


def predicted_us(problem: ConvProblem) -> float:
    """The predicted time of the launch in microseconds: it reads residual and output, and writes the output."""
    return LAUNCH_US + US_PER_MIB * 3 * FLOAT_BYTES * prod(problem.output_shape) / 2**20
