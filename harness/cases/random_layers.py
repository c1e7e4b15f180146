"""Layers that a seed draws: log-uniform sizes, so that small and large ones are equally likely.

The distribution stands in a file, such as configs/random.yaml. The same file gives the same cases on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log
from random import Random
from typing import Annotated

from pydantic import AfterValidator, Field

from cuconv.core.problem import ConvProblem
from harness.cases.config_files import COUNTING, MOST, PAIR, Filter, Size, Strict
from harness.errors import CatalogueError
from harness.store.times import MOST_RUNS, RUNS

OBLONG = 1 / 3  # the share of layers whose planes are not square
DRAWS = 100  # for each case, of which one must be within the limits


def _ordered(values: list[int]) -> list[int]:
    if len(values) != 2 or values[0] > values[1]:
        raise ValueError
    return values


Range = Annotated[list[Size], AfterValidator(_ordered)]


class Distribution(Strict):
    """The chances of a draw: ranges [least, most], and lists whose entries are equally likely."""

    seed: int = Field(ge=0, le=MOST, description="a whole number of at least 0")
    cases: Size
    batch: Range = Field(description=f"a range [least, most], each {COUNTING}")
    channels: Range = Field(description=f"a range [least, most], each {COUNTING}")
    filters: Range = Field(description=f"a range [least, most], each {COUNTING}")
    plane: Range = Field(description=f"a range [least, most] of rows and columns, each {COUNTING}")
    sizes: list[Filter] = Field(min_length=1, description=f"a list of filter sizes, each {COUNTING}, or {PAIR}")
    strides: list[Size] = Field(min_length=1, description=f"a list of strides, each {COUNTING}")
    dilations: list[Size] = Field(min_length=1, description=f"a list of dilations, each {COUNTING}")
    most_gflop: Size
    most_mib: Size


class RandomSettings(Strict):
    """The settings of a sweep of random layers, each of which has a batch size of its own."""

    runs: int = Field(default=RUNS, ge=1, le=MOST_RUNS, description=f"a whole number from 1 to {MOST_RUNS}")
    workspace_limit_mib: Size = 1024


def problems(drawn: Distribution) -> Iterator[ConvProblem]:
    """The convolutions, different from one another. Padding keeps the size of a plane, as far as it can be even.

    Raises CatalogueError where the limits leave too few.
    """
    chance, seen = Random(drawn.seed), set[ConvProblem]()
    for _ in range(DRAWS * drawn.cases):
        problem = _drawn(chance, drawn)
        if problem is not None and problem not in seen:
            seen.add(problem)
            yield problem
            if len(seen) == drawn.cases:
                return
    raise CatalogueError(
        f"random: only {len(seen)} of {drawn.cases} cases are within most_gflop and most_mib: raise these limits"
    )


def _drawn(chance: Random, drawn: Distribution) -> ConvProblem | None:
    """A convolution; None for one beyond the limits, or whose filter is larger than the padded plane."""

    def within(bounds: list[int]) -> int:
        least, most = bounds
        return min(most, int(exp(log(least) + chance.random() * log((most + 1) / least))))

    def one_of(values: list[int]) -> int:
        return values[int(chance.random() * len(values))]

    n, c, m, h = (within(bounds) for bounds in (drawn.batch, drawn.channels, drawn.filters, drawn.plane))
    other = within(drawn.plane)
    w = other if chance.random() < OBLONG else h
    kh, kw = drawn.sizes[int(chance.random() * len(drawn.sizes))]
    stride, dilation = one_of(drawn.strides), one_of(drawn.dilations)
    pads = [(k - 1) * dilation // 2 for k in (kh, kw)]
    if any((k - 1) * dilation + 1 > size + 2 * pad for k, size, pad in zip((kh, kw), (h, w), pads, strict=True)):
        return None
    problem = ConvProblem(
        n, c, h, w, m, kh, kw, pads[0], pads[1],
        stride_h=stride, stride_w=stride, dilation_h=dilation, dilation_w=dilation,
    )  # fmt: skip
    fits = problem.flop <= drawn.most_gflop * 1e9 and problem.min_bytes <= drawn.most_mib * 2**20
    return problem if fits else None
