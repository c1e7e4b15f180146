"""The host time of a first call for a new shape, and of a converted network's first forward at a new image size.

Their kernels are compiled: a first round over all sizes loads them. `call_cache.forget` then drops the plans and the
ready calls before each call that is timed, which makes every shape a new one. The constant weights stay packed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import cuconv
from cuconv import call_cache
from cuconv.nn import convert
from cuconv.runtime.background import waiting
from harness import progress
from harness.experiments.networks import models as network_models

LAYER, NETWORK = "a new shape", "resnet18 at a new size"
CHANNELS, LAYER_SIZES = (64, 128), range(20, 60)  # a 3x3 layer's; rows and columns
IMAGE_SIZES = range(160, 320, 16)
ROUNDS = 10
SEED = 0


@dataclass(frozen=True, slots=True)
class FirstCall:
    """A call whose first time for a size counts: `at` gives the call for a number of rows and columns."""

    name: str
    sizes: range
    at: Callable[[int], Callable[[], object]]


def check() -> None:
    """Raise UsageError where the package of the network is missing."""
    network_models.find(f"torchvision:{NETWORK.partition(' ')[0]}")


def first_calls(device: str) -> Iterator[FirstCall]:
    """The calls of a 3x3 layer and of a converted resnet18, on random data."""
    channels, filters = CHANNELS
    weight = torch.randn(filters, channels, 3, 3, device=device)

    def of_layer(size: int) -> Callable[[], object]:
        x = torch.randn(1, channels, size, size, device=device)
        return lambda: cuconv.conv2d(x, weight, padding=1)

    def of_network(size: int) -> Callable[[], object]:
        x = torch.randn(1, 3, size, size, device=device)
        return lambda: converted(x)

    yield FirstCall(LAYER, LAYER_SIZES, of_layer)
    network = network_models.find("torchvision:resnet18")
    converted, _ = convert(network.model(SEED).to(device), network.input(1, SEED).to(device))
    yield FirstCall(NETWORK, IMAGE_SIZES, of_network)


def times_us(first: FirstCall, synchronize: Callable[[], None]) -> list[float]:
    """The host microseconds of the first calls of all sizes in all rounds; synchronize waits for the GPU."""
    found = []
    with torch.no_grad(), waiting():
        calls = [first.at(size) for size in first.sizes]
        for call in calls:
            call()
        for _ in progress.counted(range(ROUNDS), f"rounds of {first.name}"):
            for call in calls:
                call_cache.forget()
                synchronize()
                start = time.perf_counter()
                call()
                found.append(1e6 * (time.perf_counter() - start))
    synchronize()
    return found
