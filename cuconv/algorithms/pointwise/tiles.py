"""Tiles of the fp16x3_pointwise kernel: a configuration, what its blocks compute, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from cuconv.algorithms.common.implicit_gemm import grid_text
from cuconv.algorithms.pointwise.variants import Form
from cuconv.problem import ConvProblem

# As in the .cu file.
WARPGROUP = 128  # threads
TEAM_PIXELS = 64  # of a warpgroup that multiplies


@dataclass(frozen=True, slots=True)
class Fp16x3PointwiseConfig:
    """A block's tile and chunk, its pipeline, and its grid.

    joint: the teams have the same pixels and take turns with the chunks, instead of pixels of their own.
    resident: the weights of a tile's filters stay. own: the block splits them itself. split_last: blocks that share
    each tile of the last round, or 1. staged: filters of a team that are on their way out at once. form: which pixels a
    team has.
    """

    filters: int
    channels: int
    teams: int
    joint: bool
    stages: int
    weight_stages: int
    resident: bool
    own: bool
    split_last: int
    staged: int
    form: Form
    blocks: int
    shared_bytes: int
    workspace_bytes: int
    products: int

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return TEAM_PIXELS * (1 if self.joint else self.teams)

    @property
    def threads(self) -> int:
        """Of a block: its teams, and a warpgroup that copies."""
        return WARPGROUP * (self.teams + 1)

    def __str__(self) -> str:
        stages = f"{self.stages}+{self.weight_stages}{' own' if self.own else ' resident' if self.resident else ''}"
        tile = f"{self.filters}x{self.pixels}x{self.channels}{f'/{self.teams}' if self.joint else ''}"
        stages += f" split={self.split_last}" if self.split_last > 1 else ""
        return f"tile={tile}{self.form.value} stages={stages} staged={self.staged} {grid_text(self)}"


def pitch(problem: ConvProblem, form: Form) -> int:
    """Floats in shared memory of a channel's pixels, and of a filter's on the way to the output, as in the .cu file."""
    return problem.out_pixels if form is Form.IMAGES else 68


def turns_of(problem: ConvProblem, config: Fp16x3PointwiseConfig) -> int:
    """Chunks of a tile, one after the other: a team's, where each has some of them."""
    return ceil(ceil(problem.c / config.channels) / (config.teams if config.joint else 1))


def is_strided(problem: ConvProblem, config: Fp16x3PointwiseConfig) -> bool:
    """Whether a block takes every so many tiles, so that all work side by side: where its weights can be the same."""
    return not config.resident or config.blocks % ceil(problem.m / config.filters) == 0


def loads_of(problem: ConvProblem, config: Fp16x3PointwiseConfig) -> int:
    """Of other filters' weights, by a block that has most of them."""
    if is_strided(problem, config):
        return 1
    stretches = stretches_of(problem, 1 if config.joint else config.teams, config.form)
    tiles = stretches * ceil(problem.m / config.filters)
    of_block = ceil(tiles / config.blocks)
    begins_with_filters = tiles % config.blocks == 0 and max(stretches, of_block) % min(stretches, of_block) == 0
    return ceil(of_block / stretches) + (0 if begins_with_filters or tiles == stretches else 1)


def rows_of(problem: ConvProblem, form: Form) -> int:
    """Teams' pixels, all together."""
    if form is Form.PLAIN:
        return ceil(problem.n * problem.out_pixels / TEAM_PIXELS)
    if form is Form.IMAGES:
        return problem.n
    slack = form.grain - 1
    return problem.n * ceil((problem.out_pixels - slack) / (TEAM_PIXELS - slack))


def stretches_of(problem: ConvProblem, teams: int, form: Form) -> int:
    """Tiles of the same filters; teams: with pixels of their own."""
    return ceil(rows_of(problem, form) / teams)


def tiles_of(problem: ConvProblem, config: Fp16x3PointwiseConfig) -> int:
    stretches = stretches_of(problem, 1 if config.joint else config.teams, config.form)
    return stretches * ceil(problem.m / config.filters)
