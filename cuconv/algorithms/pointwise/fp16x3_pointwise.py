"""1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: much work, or memory-bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common import eviction
from cuconv.algorithms.common.implicit_gemm import PRODUCTS, is_pointwise
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_hopper
from cuconv.algorithms.common.weight_packing import Split, SplitCosts, factor_bytes
from cuconv.algorithms.pointwise.tiles import (
    TEAM_PIXELS,
    Fp16x3PointwiseConfig,
    is_strided,
    loads_of,
    pitch,
    rows_of,
    stretches_of,
    tiles_of,
    turns_of,
)
from cuconv.algorithms.pointwise.variants import (
    CHANNELS,
    SHIFTED,
    TEAMS,
    Form,
    holds_own,
    macros_of,
    most_filters,
    sample,
)
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

# As in the .cu file.
STATIC_BYTES = 1536  # more than the barriers of 78 chunks of weights take
BARRIER_BYTES = 2 * 8  # of a chunk in shared memory
STAGED = (64, 32)  # filters of a team there at once
VECTOR = 4  # pixels of a 16-byte copy
SHIFTED_PIXELS = 2 * TEAM_PIXELS  # of a plane, at least, whose rows are copied so though they begin anywhere
IMAGE_PIXELS = TEAM_PIXELS // 2  # of a plane, more than these, where a team has a whole image
COPIERS = {2: 64, 3: 32}  # threads that copy the pixels of a team, by teams of a block

FILTERS_STEP, MAX_FILTERS = 16, 160  # of a tile
MAX_STAGES = 6
CACHED_MIB = 32  # of an output, that an H200's L2 cache keeps, about
JOINT_TILES = 3  # for each SM, at most, where teams share tiles
MOST_PARTS = 4  # of a tile of the last round, where it is split
SPLIT_ROUNDS = 4  # before it, at most: after more it does not count
FLAG_BYTES = 4
OWN_FILTERS = (48, 32)  # of a tile whose weights the block splits itself, beside the usual ones


@dataclass(frozen=True, slots=True)
class Costs(SplitCosts):
    """The constants of its cost model."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    block_own: float = constant("the same with one launch, where blocks split the weights themselves")
    own: float = constant("a block's time to split 2**13 weights itself")
    turn: float = constant("a team's wait in a chunk")
    convert: float = constant("the same, in addition, for 64 channels")
    convert_shifted: float = constant("the same, in addition, where rows begin anywhere")
    add: float = constant("the same, in addition, for 64 filters")
    busy: float = constant("the part of a team's chunk, without its products, that keeps the SM from other teams'")
    multiply: float = constant("an SM's time for 2**18 multiply-adds of FP32")
    arrive: float = constant("the way of a chunk's pixels, shared by those that are under way")
    copy: float = constant("a thread's time to copy 64 pixels of channels, four at a time")
    copy_shifted: float = constant("the same, in addition, where rows begin anywhere")
    copy_one: float = constant("an SM's time for 64 channels of a team's pixels that are copied one by one")
    weights: float = constant("a block's time to copy 2**13 weights that do not stay")
    weights_arrive: float = constant("a team's wait for a chunk's weights that do not stay, shared by those under way")
    write: float = constant("a team's wait to write 2**12 outputs")
    write_all: float = constant("an SM's time for 2**14 outputs, four at a time")
    write_shifted: float = constant("the same, in addition, where rows begin anywhere")
    gather: float = constant("a team's time to add 2**12 sums of others, where teams share a tile")
    leave: float = constant("a team's time to leave 2**12 sums to another block")
    collect: float = constant("a team's time to add 2**12 sums of another block")
    memory: float = constant("2**20 bytes of operands through device memory")
    memory_shared: float = constant("2**20 bytes of output beyond the cache, in addition, where teams share sectors")
    memory_crowded: float = constant("2**20 bytes of output, in addition, where a block has three teams, not two")


class Fp16x3Pointwise(Algorithm[Fp16x3PointwiseConfig, Costs]):
    """1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: much work, or memory-bound."""

    source = SOURCE
    summary = "1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: much work, or memory-bound."
    precisions = PRECISIONS
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """The largest tiles that registers hold, small ones, and each other macro in its settings."""
        return sample() if arch == HOPPER_ARCH else []

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Fp16x3PointwiseConfig]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        _check(problem, device)
        found = []
        usual = _filters(problem.m, (MAX_FILTERS, 128, 64))
        for filters in dict.fromkeys((*usual, *_filters(problem.m, OWN_FILTERS))):
            for channels in _channels(problem.c):
                for teams in TEAMS:
                    for joint in (False, True):
                        for form in pixel_forms(problem):
                            some = _candidates_of(problem, device, filters, channels, teams, joint, form)
                            found += [config for config in some if filters in usual]
                            found += [_own(config) for config in some if _can_own(config)]
                            found += [
                                split for config in some for split in _with_last_round_split(problem, device, config)
                            ]
        return found

    def estimate_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Fp16x3PointwiseConfig, costs: Costs
    ) -> float:
        """Estimated device time of all kernels in microseconds.

        A chunk takes a team's latency, the SM's time for all teams, or that of the copies: their norm.
        """
        c = config
        shifted, images = c.form.grain > 0, c.form is Form.IMAGES
        one_by_one = problem.out_pixels % VECTOR > 0 and c.form is Form.PLAIN
        sharers = c.teams if c.joint else 1
        turn_us = costs.turn + (costs.convert + costs.convert_shifted * shifted) * c.channels / 64
        turn_us += costs.add * c.filters / 64
        turn_us += 0 if c.resident else costs.weights_arrive * sharers / (c.stages - 1)
        all_us = costs.busy * turn_us + costs.multiply * c.filters * c.channels * TEAM_PIXELS / 2**18
        all_us = (all_us + costs.copy_one * one_by_one * c.channels / 64) * c.teams
        copy_us = costs.arrive / (c.stages - 1)
        copy_64_us = costs.copy + costs.copy_shifted * shifted
        copy_us += 0 if images else copy_64_us * TEAM_PIXELS * c.channels / COPIERS[c.teams] / 64
        copy_us += 0 if c.resident else costs.weights * sharers * c.filters * c.channels / 2**13
        outputs = c.filters * (problem.out_pixels if images else TEAM_PIXELS)  # of a team
        write_us = (costs.write / sharers + costs.gather * c.joint) * outputs / 2**12
        # Single elements take a place each of what four would, and the more teams, the more they are in each other's way.
        places = 1 + one_by_one * (VECTOR * c.teams / 2 - 1)
        write_all_us = (costs.write_all * places + costs.write_shifted * shifted) * outputs * c.teams / sharers / 2**14
        turns, tiles = turns_of(problem, c), ceil(tiles_of(problem, c) / c.blocks)
        turns = turns * (tiles - 1) + ceil(turns / c.split_last)  # of the block that has most of them
        tiles_us = hypot(turns * turn_us + tiles * write_us, turns * all_us, turns * copy_us, tiles * write_all_us)
        if c.split_last > 1:
            tiles_us += (costs.leave + costs.collect * (c.split_last - 1)) * c.filters * TEAM_PIXELS / 2**12
        if c.own:
            weights = c.filters * c.channels * c.weight_stages
            start_us = costs.block_own + costs.own * loads_of(problem, c) * weights / 2**13
        else:
            start_us = costs.block + Split(c.filters, c.channels, c.products).predicted_us(problem, costs)
        written = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
        moved_us = costs.memory * problem.min_bytes / 2**20 + costs.memory_crowded * (c.teams - min(TEAMS)) * written
        if one_by_one or c.form.grain == VECTOR:  # two halves of a sector meet in the cache, as far as it reaches
            moved_us += costs.memory_shared * max(0, written - CACHED_MIB)
        return start_us + hypot(tiles_us, moved_us)

    def launches(
        self, problem: ConvProblem, config: Fp16x3PointwiseConfig, aligned: bool, relu: bool
    ) -> tuple[Launch, ...]:
        """The kernels; each may start while the one ahead of it in the stream ends, and waits by itself."""
        c, p = config, problem
        images = c.form is Form.IMAGES
        vector = aligned and (p.out_pixels % VECTOR == 0 or images)
        own = (VECTOR if aligned and p.c % VECTOR == 0 else 1) if c.own else 0
        macros = macros_of(
            c.filters,
            c.channels,
            c.teams,
            joint=int(c.joint),
            stages=c.stages,
            weight_stages=c.weight_stages,
            resident=int(c.resident),
            strided=int(is_strided(problem, c)),
            split_last=c.split_last,
            own=own,
            staged=c.staged,
            vector=int(vector),
            shifted=c.form.grain,
            plane=p.out_pixels if images else 0,
            evict_first=eviction.evict_first(p),
            products=c.products,
        )
        arguments = (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, p.n, p.c, p.h, p.w, p.m, int(relu))
        main = Launch(self.source, macros, self.name, c.blocks, c.threads, arguments, c.shared_bytes, overlap=True)
        if c.own:
            return (main,)
        sharing = c.blocks if c.split_last > 1 else 0
        return (Split(c.filters, c.channels, c.products).launch(p, self.source, macros, sharing), main)


def pixel_forms(problem: ConvProblem) -> list[Form]:
    """Those that there are beside the plain one are for planes that begin anywhere."""
    found = [Form.PLAIN]
    if problem.out_pixels % VECTOR == 0:
        return found
    if problem.out_pixels >= SHIFTED_PIXELS:
        found += SHIFTED
    # All channels of a chunk, and all filters of a tile, begin where sixteen bytes do.
    whole = problem.c % VECTOR == 0 and problem.m % VECTOR == 0
    if IMAGE_PIXELS < problem.out_pixels <= TEAM_PIXELS and whole:
        found.append(Form.IMAGES)
    return found


def _check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raises UnsupportedProblem for another architecture or filter, and where the kernel's integers do not suffice."""
    p = problem
    require_hopper(problem, device)
    if not is_pointwise(p):
        raise UnsupportedProblem(f"{p.label}: fp16x3_pointwise is for filters of 1x1 without padding")
    sizes = [
        ("pixels in the batch", p.n * p.out_pixels, MAX_INDEX - 2**10),  # with room for a tile
        ("bytes in a plane", FLOAT_BYTES * p.out_pixels, MAX_INDEX),
        ("tiles", max(rows_of(p, form) for form in pixel_forms(p)) * ceil(p.m / FILTERS_STEP), MAX_INDEX),
        ("weights", p.m * p.c, MAX_INDEX),
    ]
    check_sizes(problem, SOURCE.stem, sizes)


def _filters(filters: int, limits: tuple[int, ...]) -> list[int]:
    """Of a tile: for each limit as many as fit, in tiles of equal size."""
    found = []
    for most in limits:
        count = ceil(filters / most)
        found.append(FILTERS_STEP * ceil(filters / count / FILTERS_STEP))
    return list(dict.fromkeys(found))


def _channels(channels: int) -> list[int]:
    """Of a chunk: those that pad least, of these the largest two."""
    padded = {size: size * ceil(channels / size) for size in CHANNELS}
    least = min(padded.values())
    return [size for size in CHANNELS if padded[size] <= 1.1 * least][-2:]


def _candidates_of(
    problem: ConvProblem, device: DeviceSpec, filters: int, channels: int, teams: int, joint: bool, form: Form
) -> list[Fp16x3PointwiseConfig]:
    """With weights that stay, where they leave room for two chunks of pixels, and with weights that do not.

    More filters are staged where that costs no chunk of pixels. Joint tiles are for grids that are short of tiles.
    """
    products = PRODUCTS[problem.precision]
    stage_bytes = teams * channels * pitch(problem, form) * FLOAT_BYTES
    weight_bytes = filters * channels * factor_bytes(products) + (filters + channels) * FLOAT_BYTES
    chunks, tiles = (
        ceil(problem.c / channels),
        stretches_of(problem, 1 if joint else teams, form) * ceil(problem.m / filters),
    )
    if joint and (chunks < 2 * teams or tiles > JOINT_TILES * device.sm_count):
        return []
    weight_users = teams if joint else 1  # with stages of their own
    barriers = max(0, BARRIER_BYTES * (chunks + teams * MAX_STAGES) - STATIC_BYTES)  # if weights stay, more than usual

    def staging_bytes(staged: int) -> int:
        return teams * staged * pitch(problem, form) * FLOAT_BYTES

    def most_stages(stay: bool, staged: int) -> int:
        room = device.shared_bytes_per_block - STATIC_BYTES - staging_bytes(staged)
        if stay:
            return min(MAX_STAGES, (room - barriers - chunks * weight_bytes) // stage_bytes)
        return min(MAX_STAGES, room // (stage_bytes + weight_users * weight_bytes))

    found = []
    for stay in (True, False):
        stages = most_stages(stay, min(STAGED))
        # Two chunks under way, with weights that come along, make less than any other form.
        least = 2 if stay or joint else 3
        most = most_filters(teams, channels, products, stay and chunks == 1, form)
        if stages < least or filters > most:
            continue
        if not stay and most_stages(True, min(STAGED)) >= 3:
            continue
        staged = max(staged for staged in STAGED if most_stages(stay, staged) == stages)
        weight_stages = chunks if stay else weight_users * stages
        found.append(
            Fp16x3PointwiseConfig(
                filters,
                channels,
                teams,
                joint,
                stages,
                weight_stages,
                stay,
                own=False,
                split_last=1,
                staged=staged,
                form=form,
                blocks=min(device.sm_count, tiles),
                shared_bytes=stages * stage_bytes + weight_stages * weight_bytes + staging_bytes(staged),
                workspace_bytes=Split(filters, channels, products).workspace_bytes(problem),
                products=products,
            )
        )
    return found


def _can_own(config: Fp16x3PointwiseConfig) -> bool:
    c = config
    return c.resident and holds_own(c.filters, c.channels, c.weight_stages, c.teams)


def _own(config: Fp16x3PointwiseConfig) -> Fp16x3PointwiseConfig:
    return replace(config, own=True, workspace_bytes=0)


def _with_last_round_split(
    problem: ConvProblem, device: DeviceSpec, config: Fp16x3PointwiseConfig
) -> list[Fp16x3PointwiseConfig]:
    """The same with the last round's tiles split, where it leaves half of the SMs idle, or more.

    Not the only round: all parts of a tile would come together then, and wait for each other.
    """
    c = config
    rounds, last = divmod(tiles_of(problem, c), device.sm_count)
    parts = min(device.sm_count // last, turns_of(problem, c), MOST_PARTS) if last else 1
    if c.resident or c.joint or parts == 1 or not 1 <= rounds <= SPLIT_ROUNDS:
        return []
    left_bytes = c.blocks * c.teams * (FLOAT_BYTES * TEAM_PIXELS * c.filters + FLAG_BYTES)
    return [replace(c, split_last=parts, workspace_bytes=c.workspace_bytes + left_bytes)]
