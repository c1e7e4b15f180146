"""The program of the processes that time new input sizes, or convert: one network, one contender. Needs a GPU.

    python -m harness.experiments.latency.measure size NETWORK CONTENDER SIZES SEED
    python -m harness.experiments.latency.measure convert NETWORK CONTENDER FILE

run.py starts it, with the compile cache in its environment. It writes a line of JSON for each row.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cuconv import wait_for_kernels
from harness.experiments.latency.plan import AGAIN, FIRST_SIZE, SEED, drawn_sizes
from harness.experiments.latency.rows import CUCONV, SIZE
from harness.experiments.networks import models as network_models
from harness.experiments.networks.contenders import set_torch
from harness.experiments.networks.models import Network
from harness.precision import FP32

Row = dict[str, Any]  # the columns of latency.csv that only this process knows


def milliseconds(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """The wall-clock milliseconds from a call to its synchronised result; the GPU is idle before."""
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return 1e3 * (time.perf_counter() - start)


def images(height: int, width: int, device: str) -> torch.Tensor:
    """One image of normal data, 1 x 3 x height x width."""
    return torch.randn(1, 3, height, width, device=device)


def contender_of(name: str, model: torch.nn.Module, example: torch.Tensor) -> torch.nn.Module:
    """The model as a contender calls it: converted for the size of the example, or torch's own."""
    return import_module("cuconv.nn").convert(model, example)[0] if name == CUCONV else model


def size_rows(
    network: Network, contender: str, sizes: Sequence[tuple[int, int]], device: str, synchronize: Callable[[], None]
) -> Iterator[Row]:
    """A row for each size, of a contender that was made for FIRST_SIZE and called once with it.

    Inputs are on the device before a call is timed. Memory that torch allocates for a size is part of its first call.
    Kernels that compile in the background are waited for between the first call and the second, as if it came later.
    """
    model, example = network.model(SEED).to(device), images(FIRST_SIZE, FIRST_SIZE, device)
    called = contender_of(contender, model, example)
    with torch.inference_mode():
        milliseconds(lambda: called(example), synchronize)
        for height, width in sizes:
            x = images(height, width, device)
            first = milliseconds(lambda: called(x), synchronize)  # noqa: B023
            wait_for_kernels()
            second, *again = (milliseconds(lambda: called(x), synchronize) for _ in range(1 + AGAIN))  # noqa: B023
            times = {"first_ms": first, "second_ms": second, "again_ms": median(again)}
            yield {"height": height, "width": width, **times}


def convert_rows(
    network: Network, contender: str, file: Path, device: str, synchronize: Callable[[], None]
) -> Iterator[Row]:
    """Write the file of a contender's model. The time of convert is a row; torch, which has no such step, has none."""
    model, example = network.model(SEED).to(device), images(FIRST_SIZE, FIRST_SIZE, device)
    made: list[torch.nn.Module] = []
    took = milliseconds(lambda: made.append(contender_of(contender, model, example)), synchronize)
    with torch.inference_mode():
        made[0](example)
    synchronize()
    torch.save(made[0], file)
    if contender == CUCONV:
        yield {"height": FIRST_SIZE, "width": FIRST_SIZE, "first_ms": took, "second_ms": None, "again_ms": None}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments say and write the rows."""
    what, network, contender, *rest = sys.argv[1:] if arguments is None else arguments
    set_torch(FP32, benchmark=False)  # it would time every engine for each size
    output = sys.stdout
    with redirect_stdout(sys.stderr):  # so that nothing but rows gets there
        found = network_models.find(network)
        if what == SIZE:
            sizes = drawn_sizes(int(rest[0]), int(rest[1]))
            rows = size_rows(found, contender, sizes, "cuda", torch.cuda.synchronize)
        else:
            rows = convert_rows(found, contender, Path(rest[0]), "cuda", torch.cuda.synchronize)
        for row in rows:
            print(json.dumps(row), file=output, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
