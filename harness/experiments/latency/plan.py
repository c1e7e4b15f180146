"""The processes that an experiment starts, in order, and the input sizes that they compute."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiments.latency.rows import CONVERT, CUCONV, EMPTY, FULL, NO_CACHE, SIZE, START, TORCH, Group
from harness.experiments.networks.rows import TORCHVISION

FIRST_SIZE = 224  # height and width that a contender is made for
LEAST, MOST = 96, 640  # height and width of the sizes that follow
MAX_SIZES = 1000
AGAIN = 5  # further calls of a size
STARTS = 3  # processes whose start is timed, for each contender
START_NETWORK = "resnet50"
SEED = 0

# Guessed seconds, by which the progress bar moves: a process until its first row, and a size by the cache.
_PROCESS_S = {SIZE: 15.0, START: 8.0, CONVERT: 20.0}
_COMPILING_S = 20.0  # more, for convert with an empty cache
_SIZE_S = {NO_CACHE: 0.2, EMPTY: 1.5, FULL: 0.2}


@dataclass(frozen=True, slots=True)
class Process:
    """A fresh process: the columns that its rows have in common, and the number of those rows.

    A process of "convert" makes the file of a model for "start". That of torch has no rows.
    """

    what: str
    network: str
    contender: str
    cache: str
    rows: int

    @property
    def group(self) -> Group:
        """The cells of GROUP_COLUMNS in its rows."""
        return self.what, self.network, self.contender, self.cache

    @property
    def needs(self) -> Group | None:
        """The group of the process that must have ended well before: it fills the cache, or writes the model."""
        if self.what == START:
            return CONVERT, self.network, self.contender, self.cache
        return (self.what, self.network, self.contender, EMPTY) if self.cache == FULL else None

    @property
    def typed(self) -> str:
        """The network as `network_models.find` takes it."""
        return typed(self.network)

    @property
    def title(self) -> str:
        """A few words for the progress bar and messages."""
        cache = "" if self.cache == NO_CACHE else f", cache {self.cache}"
        return f"{self.what} {self.network} {self.contender}{cache}"

    @property
    def start_s(self) -> float:
        """Guessed seconds until the process is ready for its first row."""
        return _PROCESS_S[self.what] + (_COMPILING_S if self.cache == EMPTY else 0.0)

    @property
    def row_s(self) -> float:
        """Guessed seconds of a row from then on."""
        return _SIZE_S[self.cache] if self.what == SIZE else 0.0

    @property
    def seconds(self) -> float:
        """Guessed seconds of the whole process."""
        return self.start_s + self.rows * self.row_s


def typed(network: str) -> str:
    """A network with its source: "torchvision:resnet18" for "resnet18", since a bare name is one of torchvision's."""
    return network if ":" in network else f"{TORCHVISION}:{network}"


def drawn_sizes(count: int, seed: int) -> list[tuple[int, int]]:
    """Different heights and widths, drawn independently; more from the same seed begin with the same ones.

    The size that a contender is made for is not among them.
    """
    generator = random.Random(seed)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        size = generator.randint(LEAST, MOST), generator.randint(LEAST, MOST)
        if size not in found and size != (FIRST_SIZE, FIRST_SIZE):
            found.append(size)
    return found


def caches_of(contender: str) -> tuple[str, ...]:
    """The states of the compile cache that a contender is measured with, in order: "full" is what "empty" left."""
    return (EMPTY, FULL) if contender == CUCONV else (NO_CACHE,)


def processes(networks: Sequence[str], contenders: Sequence[str], whats: Sequence[str], sizes: int) -> list[Process]:
    """The processes in order: new sizes of each network, then the files of models, then starts that take turns."""
    found = []
    if SIZE in whats:
        found += [
            Process(SIZE, network, contender, cache, sizes)
            for network in networks
            for contender in contenders
            for cache in caches_of(contender)
        ]
    if START in whats:
        found += [
            Process(CONVERT, START_NETWORK, contender, cache, 0 if contender == TORCH else 1)
            for contender in contenders
            for cache in caches_of(contender)
        ]
        found += STARTS * [
            Process(START, START_NETWORK, contender, caches_of(contender)[-1], 1) for contender in contenders
        ]
    return found
