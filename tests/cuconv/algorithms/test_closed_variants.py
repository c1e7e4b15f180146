"""`variants` of these algorithms is exact: no launch of any problem has a kernel variant that it does not list."""

from itertools import islice, product
from random import Random

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from tests.cuconv.algorithms.problems import each_device

PROBLEMS = 2000
FASTEST = 4  # configurations of a problem whose launches are looked at
DRAWN = 5  # of OPTIONS for each of these
OPTIONS = [
    CallOptions(aligned=aligned, residual=residual, packed=packed, output_channels=channels)
    for aligned, residual, packed, channels in product((True, False), (True, False), (True, False), (None, 4097))
]


def random_problem(random: Random) -> ConvProblem | None:
    """A problem of any geometry, of few or many channels a group; None where its filter does not fit the input."""
    kh = random.choice((1, 1, 2, 3, 3, 3, 5, 7, 9, 31))
    kw = random.choice((kh, kh, kh, random.randint(1, 16)))
    groups = random.choice((1, 1, 2, 6, 32, 64))
    stride_h, dilation_h = (
        random.choice((1, 1, 2, random.randint(1, 9))),
        random.choice((1, 1, 1, random.randint(1, 9))),
    )
    stride_w = random.choice((stride_h, stride_h, random.randint(1, 9)))
    dilation_w = random.choice((dilation_h, dilation_h, random.randint(1, 9)))
    c, m = groups * random.choice((1, 1, 2, 4, 8, 24)), groups * random.choice((1, 1, 2, 3, 4, 8, 24))
    h = random.choice((1, 4, 7, 14, 28, 56, random.randint(1, 300), 3000))
    w = random.choice((h, h, random.randint(1, 300)))
    pad_h, pad_w = random.choice(((kh // 2, kw // 2), (0, 0), (random.randint(0, 5), random.randint(0, 5))))
    if random.random() < 0.1:  # a fully connected layer
        kh, kw, pad_h, pad_w, groups, dilation_h, dilation_w = h, w, 0, 0, 1, 1, 1
    n, precision = random.choice((1, 2, 8, 32, 64)), random.choice(("fp32", "tf32"))
    try:
        return ConvProblem(
            *(n, c, h, w, m, kh, kw, pad_h, pad_w, precision, stride_h, stride_w, dilation_h, dilation_w, groups)
        )
    except (ValueError, UnsupportedProblem):
        return None


@pytest.mark.parametrize("name", ["tf32x3_gemm", "depthwise", "direct", "two_stage", "gemv"])
@each_device
def test_every_launch_is_of_a_variant(name, device):
    algorithm, random, drawn, tried = ALGORITHMS[name], Random(1), Random(2), 0
    variants = {frozenset(macros.items()) for macros in algorithm.variants(device.arch)}
    assert len(variants) == len(algorithm.variants(device.arch))
    for problem in (random_problem(random) for _ in range(PROBLEMS)):
        if problem is None or problem.precision not in algorithm.precisions:
            continue
        try:
            fastest = list(islice(algorithm.ranked(problem, device, CallOptions()), FASTEST))
        except UnsupportedProblem:
            continue
        tried += 1
        for _, config in fastest:
            for options in drawn.sample(OPTIONS, DRAWN):
                for launch in algorithm.launches(problem, config, options):
                    if launch.source == algorithm.source:
                        assert frozenset(launch.macros.items()) in variants, (problem, str(config), launch.macros)
    assert tried > PROBLEMS // 50
