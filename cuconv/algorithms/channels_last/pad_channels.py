"""Channels that are no multiple of 8, as those of a network's first layer, padded with zeros by a kernel ahead.

`pad_channels.cu` copies input and weights to the workspace, the input first.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cuconv.core.launch import INPUT, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import HALF_BYTES, ConvProblem, ceil_div

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 256
VECTOR_CHANNELS = 8  # 16 bytes: strides of a tensor map are multiples of them
# Microseconds of the launch, and for 2**20 bytes that it writes, on an H100: guesses.
LAUNCH_US, US_PER_MIB = 1.5, 0.5


def is_padded(problem: ConvProblem) -> bool:
    """Whether the channels of a problem must be padded."""
    return problem.c % VECTOR_CHANNELS != 0


def on_padded(problem: ConvProblem) -> ConvProblem:
    """The equal convolution of padded tensors; the problem itself where nothing must be padded."""
    channels = ceil_div(problem.c, VECTOR_CHANNELS) * VECTOR_CHANNELS
    return replace(problem, c=channels) if is_padded(problem) else problem


def workspace_bytes(problem: ConvProblem) -> int:
    """The bytes of the padded copies; 0 where nothing must be padded."""
    return HALF_BYTES * on_padded(problem).c * sum(_rows(problem)) if is_padded(problem) else 0


def operands(problem: ConvProblem) -> tuple[Address, Address]:
    """Where the main kernel finds input and weight."""
    if not is_padded(problem):
        return INPUT, WEIGHT
    input_rows, _ = _rows(problem)
    return WORKSPACE, WORKSPACE + HALF_BYTES * on_padded(problem).c * input_rows


def launches(problem: ConvProblem) -> tuple[Launch, ...]:
    """The launch that makes the copies; none where nothing must be padded."""
    if not is_padded(problem):
        return ()
    vectors = on_padded(problem).c // VECTOR_CHANNELS
    arguments = (INPUT, WEIGHT, WORKSPACE, *_rows(problem), problem.c, vectors)
    blocks = ceil_div(sum(_rows(problem)) * vectors, THREADS)
    return (Launch(SOURCE, {}, "pad_channels", blocks, THREADS, arguments, overlap=True),)


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{}]


def predicted_us(problem: ConvProblem) -> float:
    """The predicted time of the copies in microseconds; 0 where nothing must be padded."""
    return LAUNCH_US + US_PER_MIB * workspace_bytes(problem) / 2**20 if is_padded(problem) else 0.0


def _rows(problem: ConvProblem) -> tuple[int, int]:
    """The pixels of the input, and the filter positions of all filters."""
    return problem.n * problem.h * problem.w, problem.m * problem.filter_area
