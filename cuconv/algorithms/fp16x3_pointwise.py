"""1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32 or of TF32: much work, or memory-bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot
from pathlib import Path

from cuconv.algorithms.fp16x3_split import Split, SplitCosts, factor_bytes
from cuconv.algorithms.tf32x3 import MAX_INDEX, PRECISION_OF, PRODUCTS, in_products, is_pointwise
from cuconv.algorithms.tf32x3_wgmma import ARCH
from cuconv.costs import constant, load
from cuconv.device import DeviceSpec
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, Launch
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

# As in the .cu file.
WARPGROUP = 128  # threads
TEAM_PIXELS = 64  # of a warpgroup that multiplies
PIXEL_PITCH = 68  # floats of a channel's pixels in shared memory
WRITE_PITCH = 68  # floats of a filter's pixels in shared memory, on the way to the output
STATIC_BYTES = 1536  # more than the barriers of 78 chunks of weights take
BARRIER_BYTES = 2 * 8  # of a chunk in shared memory
STAGED = (64, 32)  # filters of a team there at once
VECTOR = 4  # pixels of a 16-byte copy
COPIERS = {2: 64, 3: 32}  # threads that copy the pixels of a team, by teams of a block

FILTERS_STEP, MAX_FILTERS = 16, 160  # of a tile
CHANNELS = (16, 32, 48, 64)  # of a chunk
MAX_STAGES = 6
JOINT_TILES = 3  # for each SM, at most, where teams share tiles
# The most filters of a tile by teams of a block and channels of a chunk: what the registers hold, and
# where they hold more: low parts take none with one product.
REGISTERS_HOLD = {2: {16: 160, 32: 160, 48: 160, 64: 144}, 3: {16: 96, 32: 96, 48: 80, 64: 64}}
MORE_IN_ONE_PRODUCT = {(2, 64): 160, (3, 64): 80}


@dataclass(frozen=True, slots=True)
class Costs(SplitCosts):
    """The constants of its cost model."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    turn: float = constant("a team's wait in a chunk")
    convert: float = constant("the same, in addition, for 64 channels")
    add: float = constant("the same, in addition, for 64 filters")
    multiply: float = constant("an SM's time for 2**18 multiply-adds of FP32")
    arrive: float = constant("the way of a chunk's pixels, shared by those that are under way")
    copy: float = constant("a thread's time to copy 64 pixels of channels, four at a time")
    copy_one: float = constant("the same, in addition, where they are copied one by one")
    weights: float = constant("a block's time to copy 2**13 weights that do not stay")
    write: float = constant("a team's time to write 2**12 outputs, four at a time")
    write_one: float = constant("the same, in addition, where they are written one by one")
    gather: float = constant("a team's time to add 2**12 sums of others, where teams share a tile")
    memory: float = constant("2**20 bytes of operands through device memory")


COSTS = {precision: load(Costs, SOURCE.stem, precision) for precision in PRECISIONS}


@dataclass(frozen=True, slots=True)
class Fp16x3PointwiseConfig:
    """A block's tile and chunk, its pipeline, and its grid.

    joint: the teams have the same pixels and take turns with the chunks, instead of pixels of their own.
    resident: the weights of a tile's filters stay. staged: filters of a team that are on their way out at once.
    """

    filters: int
    channels: int
    teams: int
    joint: bool
    stages: int
    weight_stages: int
    resident: bool
    staged: int
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
        stages = f"{self.stages}+{self.weight_stages}{' resident' if self.resident else ''}"
        tile = f"{self.filters}x{self.pixels}x{self.channels}{f'/{self.teams}' if self.joint else ''}"
        grid = f"stages={stages} staged={self.staged} grid={self.blocks} shared={self.shared_bytes}"
        return f"tile={tile} {grid}{in_products(self.products)}"


def variants(arch: str) -> list[dict[str, int]]:
    """The largest tiles that registers hold, small ones, and each other macro in its settings."""
    if arch != ARCH:
        return []
    sizes = [(filters, channels, teams) for teams, hold in REGISTERS_HOLD.items() for channels, filters in hold.items()]
    sample = [_macros(*size, 0, 2, 2, *rest) for size in sizes for rest in ((0, 64, 1), (1, 32, 0))]
    sample += [_macros(filters, channels, teams, 1, 2, 2 * teams, 0, 64, 1) for filters, channels, teams in sizes]
    sample += [_macros(16, 64, 3, 0, 4, 3, 1, 32, 1), _macros(48, 16, 2, 0, 6, 6, 0, 32, 0)]
    sample += [_macros(128, 64, 2, 0, 3, 3, 0, 64, 0), _macros(160, 48, 2, 0, 2, 2, 0, 32, 1)]
    sample += [_macros(64, 64, 2, 1, 3, 8, 1, 64, 0), _macros(80, 48, 3, 1, 2, 4, 1, 32, 1)]
    more = [(filters, channels, teams) for (teams, channels), filters in MORE_IN_ONE_PRODUCT.items()]
    in_one = sample + [_macros(*size, 0, 2, 2, *rest) for size in more for rest in ((0, 64, 1), (1, 32, 0))]
    in_one += [_macros(*size, 1, 2, 2 * size[2], 0, 64, 1) for size in more]
    return sample + [macros | {"PRODUCTS": 1} for macros in in_one]


def candidates(problem: ConvProblem, device: DeviceSpec) -> list[Fp16x3PointwiseConfig]:
    """The configurations that can run; raises UnsupportedProblem where there is none."""
    _check(problem, device)
    found = []
    for filters in _filters(problem.m):
        for channels in _channels(problem.c):
            for teams in REGISTERS_HOLD:
                if filters <= most_filters(teams, channels, PRODUCTS[problem.precision]):
                    for joint in (False, True):
                        found += _candidates_of(problem, device, filters, channels, teams, joint)
    return found


def most_filters(teams: int, channels: int, products: int) -> int:
    """Of a tile, in chunks of so many channels: what the registers hold."""
    most = REGISTERS_HOLD[teams][channels]
    return most if products == PRODUCTS[FP32] else MORE_IN_ONE_PRODUCT.get((teams, channels), most)


def configure(problem: ConvProblem, device: DeviceSpec) -> Fp16x3PointwiseConfig:
    """The candidate of least predicted time."""
    return min(candidates(problem, device), key=lambda config: predicted_us(problem, device, config))


def predicted_us(
    problem: ConvProblem, device: DeviceSpec, config: Fp16x3PointwiseConfig, costs: Costs | None = None
) -> float:
    """Estimated device time of both kernels in microseconds.

    A chunk takes a team's latency, the tensor cores' time for all teams, or that of the copies: their norm.
    """
    costs = costs or COSTS[PRECISION_OF[config.products]]
    c = config
    one_by_one = problem.out_pixels % VECTOR > 0
    turn_us = costs.turn + costs.convert * c.channels / 64 + costs.add * c.filters / 64
    multiply_us = costs.multiply * c.filters * c.channels * TEAM_PIXELS * c.teams / 2**18
    copy_us = costs.arrive / (c.stages - 1)
    copy_us += (costs.copy + costs.copy_one * one_by_one) * TEAM_PIXELS * c.channels / COPIERS[c.teams] / 64
    sharers = c.teams if c.joint else 1
    copy_us += 0 if c.resident else costs.weights * sharers * c.filters * c.channels / 2**13
    write_us = (costs.write + costs.write_one * one_by_one) / sharers + costs.gather * c.joint
    write_us *= c.filters * TEAM_PIXELS / 2**12
    chunks_us = ceil(ceil(problem.c / c.channels) / sharers) * hypot(turn_us, multiply_us, copy_us)
    tiles = ceil(_tiles(problem, c.filters, c.pixels) / c.blocks)
    split_us = Split(c.filters, c.channels, c.products).predicted_us(problem, device, costs)
    return costs.block + split_us + hypot(tiles * (chunks_us + write_us), costs.memory * problem.min_bytes / 2**20)


def launches(problem: ConvProblem, config: Fp16x3PointwiseConfig, aligned: bool, relu: bool) -> tuple[Launch, ...]:
    """Both kernels; each may start while the one ahead of it in the stream ends, and waits by itself."""
    c, p = config, problem
    vector = aligned and p.out_pixels % VECTOR == 0
    macros = _macros(c.filters, c.channels, c.teams, c.joint, c.stages, c.weight_stages, c.resident, c.staged, vector)
    macros |= {"PRODUCTS": c.products}
    main = (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, p.n, p.c, p.h, p.w, p.m, int(relu))
    return (
        Split(c.filters, c.channels, c.products).launch(p, SOURCE, macros, 0),
        Launch(SOURCE, macros, SOURCE.stem, c.blocks, c.threads, main, c.shared_bytes, overlap=True),
    )


def _check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raises UnsupportedProblem for another architecture or filter, and where the kernel's integers do not suffice."""
    p = problem
    if device.arch != ARCH:
        raise UnsupportedProblem(f"{p.label}: needs the instructions of {ARCH}, {device.name} is {device.arch}")
    if not is_pointwise(p):
        raise UnsupportedProblem(f"{p.label}: fp16x3_pointwise is for filters of 1x1 without padding")
    sizes = [
        ("pixels in the batch", p.n * p.out_pixels, MAX_INDEX - 2**10),  # with room for a tile
        ("bytes in a plane", FLOAT_BYTES * p.out_pixels, MAX_INDEX),
        ("tiles", _tiles(p, FILTERS_STEP, TEAM_PIXELS), MAX_INDEX),
        ("weights", p.m * p.c, MAX_INDEX),
    ]
    for what, size, limit in sizes:
        if size > limit:
            raise UnsupportedProblem(f"{p.label}: {size} {what}, the limit of fp16x3_pointwise is {limit}")


def _filters(filters: int) -> list[int]:
    """Of a tile: as many as fit, in tiles of equal size, and about a half of it."""
    found = []
    for most in (MAX_FILTERS, 128, 64):
        count = ceil(filters / most)
        found.append(FILTERS_STEP * ceil(filters / count / FILTERS_STEP))
    return list(dict.fromkeys(found))


def _channels(channels: int) -> list[int]:
    """Of a chunk: those that pad least, of these the largest two."""
    padded = {size: size * ceil(channels / size) for size in CHANNELS}
    least = min(padded.values())
    return [size for size in CHANNELS if padded[size] <= 1.1 * least][-2:]


def _candidates_of(
    problem: ConvProblem, device: DeviceSpec, filters: int, channels: int, teams: int, joint: bool
) -> list[Fp16x3PointwiseConfig]:
    """With weights that stay, where they leave room for two chunks of pixels, and with weights that do not.

    More filters are staged where that costs no chunk of pixels. Joint tiles are for grids that are short of tiles.
    """
    products, stage_bytes = PRODUCTS[problem.precision], teams * channels * PIXEL_PITCH * FLOAT_BYTES
    weight_bytes = filters * channels * factor_bytes(products) + (filters + channels) * FLOAT_BYTES
    chunks, tiles = ceil(problem.c / channels), _tiles(problem, filters, TEAM_PIXELS * (1 if joint else teams))
    if joint and (chunks < 2 * teams or tiles > JOINT_TILES * device.sm_count):
        return []
    weight_users = teams if joint else 1  # with stages of their own
    barriers = max(0, BARRIER_BYTES * (chunks + teams * MAX_STAGES) - STATIC_BYTES)  # if weights stay, more than usual

    def staging_bytes(staged: int) -> int:
        return teams * staged * WRITE_PITCH * FLOAT_BYTES

    def most_stages(stay: bool, staged: int) -> int:
        room = device.shared_bytes_per_block - STATIC_BYTES - staging_bytes(staged)
        if stay:
            return min(MAX_STAGES, (room - barriers - chunks * weight_bytes) // stage_bytes)
        return min(MAX_STAGES, room // (stage_bytes + weight_users * weight_bytes))

    found = []
    for stay in (True, False):
        stages = most_stages(stay, min(STAGED))
        if stages < 2 or (not stay and most_stages(True, min(STAGED)) >= 3):
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
                staged,
                blocks=min(device.sm_count, tiles),
                shared_bytes=stages * stage_bytes + weight_stages * weight_bytes + staging_bytes(staged),
                workspace_bytes=Split(filters, channels, products).workspace_bytes(problem),
                products=products,
            )
        )
    return found


def _tiles(problem: ConvProblem, filters: int, pixels: int) -> int:
    return ceil(problem.n * problem.out_pixels / pixels) * ceil(problem.m / filters)


def _macros(
    filters: int,
    channels: int,
    teams: int,
    joint: bool,
    stages: int,
    weight_stages: int,
    resident: bool,
    staged: int,
    vector: bool,
) -> dict[str, int]:
    return {
        "FILTERS": filters,
        "CHANNELS": channels,
        "TEAMS": teams,
        "JOINT": int(joint),
        "STAGES": stages,
        "WEIGHT_STAGES": weight_stages,
        "RESIDENT": int(resident),
        "STAGED": staged,
        "VECTOR": int(vector),
        "PRODUCTS": PRODUCTS[FP32],
    }
