"""Max pooling without a GPU: sizes, limits and the launch, whose kernel compiles for every architecture."""

import random

import pytest
import torch
import torch.nn.functional as F

from cuconv import UnsupportedProblem
from cuconv.algorithms import kernel_set
from cuconv.algorithms.channels_last import max_pool
from cuconv.algorithms.channels_last.max_pool import MaxPool
from cuconv.core.launch import INPUT, OUTPUT, KernelVariant
from cuconv.resources import ARCHITECTURES
from cuconv.runtime import compiler

PLAIN = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}


def pool(shape=(2, 64, 112, 112), precision="fp16", **more):
    return MaxPool(precision, shape, **(PLAIN | more))


def test_output_sizes_are_torchs():
    chance, computed = random.Random(3), 0
    for _ in range(2000):
        plane, kernel, stride = ([chance.randint(1, most) for _ in range(2)] for most in (12, 6, 8))
        padding, dilation = [chance.randint(0, size // 2) for size in kernel], [chance.randint(1, 3) for _ in kernel]
        options = (kernel, stride, padding, dilation, chance.random() < 0.5)
        try:
            truth = F.max_pool2d(torch.empty(1, 8, *plane), *options).shape
        except RuntimeError:
            with pytest.raises(UnsupportedProblem):
                MaxPool("fp16", (1, 8, *plane), *map(tuple, options[:4]), options[4])
            continue
        assert MaxPool("fp16", (1, 8, *plane), *map(tuple, options[:4]), options[4]).output_shape == truth
        computed += 1
    assert computed > 1000


@pytest.mark.parametrize("shape", [(1, 64, 112, 112), (3, 8, 5, 7), (32, 2048, 14, 14)])
def test_every_output_has_a_thread(shape):
    launch = max_pool.launch(pool(shape), overlap=True)
    n, c, h, w = pool(shape).output_shape
    outputs = n * c * h * w // 8
    assert (launch.blocks - 1) * launch.threads < outputs <= launch.blocks * launch.threads
    assert launch.arguments[:3] == (INPUT, OUTPUT, outputs) and launch.overlap


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (1, 12, 9, 9)},
        {"shape": (0, 8, 9, 9)},
        {"shape": (1, 8, 1, 9), "padding": (0, 0)},
        {"precision": "fp32"},
        {"padding": (2, 1)},
        {"padding": (-1, 0)},
        {"kernel": (0, 3), "padding": (0, 0)},
        {"stride": (0, 1)},
        {"dilation": (1, 0)},
        {"stride": (2**40, 1)},
        {"kernel": (1, 1), "padding": (0, 0), "dilation": (2**40, 1)},
        {"shape": (1, 8, 2**29, 3)},
        {"shape": (1, 2**20, 3, 2**20)},
        {"shape": (2**20, 2**10, 2**5, 2**5), "stride": (1, 1)},
    ],
    ids=str,
)
def test_what_the_kernel_does_not_compute_is_refused_in_one_line(options):
    with pytest.raises(UnsupportedProblem) as refused:
        pool(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernel_is_of_the_closed_set_and_does_not_spill(arch):
    for precision in ("fp16", "bf16"):
        launch = max_pool.launch(pool(precision=precision), overlap=True)
        assert kernel_set.holds(arch, [launch])
        (report,) = compiler.resources(KernelVariant.of(launch.source, arch, launch.macros))
        assert report.kernel == "max_pool" and report.spill_bytes == 0 and report.shared_bytes == 0
