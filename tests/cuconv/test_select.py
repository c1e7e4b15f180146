"""The choice of "auto": a pure function of problem and device that finds an algorithm for every problem."""

import random
import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS, kernel_set
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common import finish_output
from cuconv.core.problem import MAX_SIZE
from cuconv.device import A100, H200
from cuconv.select import BATCH_INVARIANT, MAX_WORKSPACE_BYTES, launches_of, plan, predicted_us
from tests.cuconv.layers import problems_of

LAYERS = problems_of("paper", (1,))
each_device = pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)


def random_problems(count, seed=1):
    """Problems unlike those of the networks: odd sizes, flat and tall images, filters that are not square."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        kh, kw = chance.choice([(1, 1), (3, 3), (5, 5), (7, 7), (11, 11), (1, 7), (2, 4)])
        n, h, w = chance.randint(1, 12), chance.randint(kh, 120), chance.randint(kw, 120)
        c = chance.choice([1, 3, 17, 64, 255, chance.randint(1, 3000)])
        m = chance.choice([1, 10, 33, 64, chance.randint(1, 2000)])
        pad_h, pad_w = (chance.choice([0, k // 2, k]) for k in (kh, kw))
        found.append(ConvProblem(n, c, h, w, m, kh, kw, pad_h, pad_w))
    return found


NETWORKS = [ConvProblem(n, c, s, s, c, 3, 3, 1, 1) for n in (1, 8, 64) for c in (64, 256) for s in (7, 28, 56)]


@each_device
@pytest.mark.parametrize(
    ("problems", "residual"), [(random_problems(300), False), (NETWORKS, True)], ids=["plain", "residual"]
)
def test_auto_plans_any_shape_and_takes_the_least_predicted_time(device, problems, residual):
    """The kernel that adds a residual counts, where an algorithm does not add it itself."""
    for problem in problems:

        def cost(chosen, problem=problem):
            one_more = residual and not ALGORITHMS[chosen.algorithm].fuses_residual
            adding_us = finish_output.predicted_us(problem) if one_more else 0.0
            return predicted_us(problem, device, chosen, residual) + adding_us

        chosen, options = plan(problem, device, residual=residual), CallOptions(residual=residual)
        for name in ALGORITHMS:
            try:
                other = plan(problem, device, name, residual=residual)
            except UnsupportedProblem:
                assert chosen.algorithm != name
            else:
                weighed = ALGORITHMS[name].superseded_by is None and other.workspace_bytes <= MAX_WORKSPACE_BYTES
                if weighed and kernel_set.holds(device.arch, launches_of(other, problem, options)):
                    assert cost(chosen) <= cost(other)


@pytest.mark.parametrize("size", [40, 512, 2000])
@pytest.mark.parametrize("kernel", [(33, 33), (64, 1), (400, 300)])
def test_auto_takes_a_gibibyte_of_temporary_memory_at_most(size, kernel):
    for n, c, m in ((1, 1, 1), (4, 3, 64), (16, 64, 1000)):
        try:
            chosen = plan(ConvProblem(n, c, size, size, m, *kernel, *kernel), H200)
        except UnsupportedProblem:
            continue
        assert chosen.workspace_bytes <= 2**30


def huge_problems(count, seed=2):
    """Problems whose sizes are small, around powers of two, or near the limit of a convolution."""
    chance = random.Random(seed)

    def size():
        return chance.choice([1, 2, 3, 7, 33, 100, 2**12, 2**20, 10**8, MAX_SIZE])

    def small():
        return chance.choice([1, 1, 1, 2, 3, size()])

    while count:
        groups, dense = chance.choice([1, 2, 64]), chance.random() < 0.6
        steps = {"groups": 1} if dense else {"groups": groups, "stride_h": small(), "dilation_w": small()}
        channels, filters = steps["groups"] * small(), steps["groups"] * small()
        try:
            yield ConvProblem(
                small(), channels, size(), size(), filters, small(), small(), small() - 1, small() - 1, **steps
            )
            count -= 1
        except UnsupportedProblem:
            pass


def test_huge_problems_are_planned_or_refused_at_once():
    for problem in huge_problems(300):
        start = time.process_time()
        try:
            chosen = plan(problem, H200)
            ALGORITHMS[chosen.algorithm].launches(problem, chosen.config)
        except UnsupportedProblem as error:
            assert str(error).startswith(problem.label)
        assert time.process_time() - start < 1, problem


@pytest.mark.parametrize(
    ("problem", "device", "algorithm"),
    [
        (ConvProblem(1, 3, 40, 40, 80, 33, 33), H200, "two_stage"),  # nothing else computes it
        (ConvProblem(1, 3, 40, 40, 80, 33, 33), A100, "two_stage"),
        (ConvProblem(8, 128, 56, 56, 128, 3, 3, 1, 1, groups=128), H200, "depthwise"),
        (ConvProblem(8, 256, 28, 28, 256, 3, 3, 1, 1, groups=64), H200, "depthwise"),
        (ConvProblem(1, 2048, 1, 1, 1000, 1, 1), H200, "gemv"),
        (ConvProblem(64, 4096, 1, 1, 4096, 1, 1), H200, "fp16x3|tf32x3"),  # tensor cores
        (ConvProblem(256, 256, 28, 28, 256, 3, 3, 1, 1), H200, "fp16x3"),
        (ConvProblem(256, 256, 28, 28, 256, 3, 3, 1, 1), A100, "tf32x3_gemm"),
    ],
    ids=str,
)
def test_each_kind_of_layer_goes_to_the_kernels_that_are_for_it(problem, device, algorithm):
    assert re.match(algorithm, plan(problem, device).algorithm)


@each_device
def test_a_larger_batch_is_not_predicted_to_take_less_time(device):
    """But for the few percent by which the closed set's kernels for one batch may be less special than for another."""
    for layer in LAYERS:
        times = [
            predicted_us(problem, device, plan(problem, device))
            for problem in (replace(layer, n=n) for n in (1, 2, 4, 8, 12, 16, 32, 64, 128, 256))
        ]
        assert all(more > 0.95 * less for less, more in pairwise(times)), layer.label


@each_device
def test_predicted_times_are_possible(device):
    """No plan beats the 3xFP16 rate of an H200, also for the fewer products of Winograd, nor an empty kernel."""
    for layer in LAYERS:
        for problem in (layer, replace(layer, n=64)):
            chosen = plan(problem, device)
            us = predicted_us(problem, device, chosen)
            products = problem.flop * ((problem.kw + 3) / 4 / problem.kw if "winograd" in chosen.algorithm else 1)
            assert us > max(0.7, products / 310e6), problem.label  # a launch takes 0.7 us at least


@pytest.mark.parametrize(("sweep", "every"), [("paper", 2), ("strided", 1), ("grouped", 1), ("fully_connected", 1)])
def test_the_sums_of_an_image_are_added_alike_in_every_batch(sweep, every):
    chance = random.Random(3)
    for layer in problems_of(sweep, (1,))[::every]:
        batches = (1, *chance.sample((2, 3, 8, 27, 64, 100, 256, 512), 3), 1000)
        plans = [plan(replace(layer, n=n), H200, BATCH_INVARIANT) for n in batches]
        ways = {(one.algorithm, one.precision, ALGORITHMS[one.algorithm].summation(one.config)) for one in plans}
        assert len(ways) == 1, layer.label


@each_device
def test_alike_in_every_batch_plans_any_shape(device):
    for problem in random_problems(100):
        chosen = plan(problem, device, BATCH_INVARIANT)
        assert ALGORITHMS[chosen.algorithm].summation(chosen.config) is not None


def test_a_residual_changes_nothing_of_a_plan_that_is_asked_for_by_name():
    problem = ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1)
    for algorithm in ("two_stage", "fp16x3", "batch_invariant"):
        assert plan(problem, H200, algorithm, residual=True) == plan(problem, H200, algorithm)
