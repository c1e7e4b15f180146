"""Whatever the layer, "auto" launches kernels of the closed set alone: those that a wheel ships."""

import random

import pytest

from cuconv import ConvProblem, UnsupportedProblem, select
from cuconv.algorithms import ALGORITHMS, kernel_set
from cuconv.algorithms.base import CallOptions
from cuconv.device import A100, H200

PROBLEMS = 10_000


def drawn(chance):
    """A layer of any geometry, small enough that every algorithm's limits hold."""
    groups = chance.choice((1, 1, 1, 2, 8, 32))
    c, m = (chance.randint(1, 16) * chance.choice((1, 2, 8, 64)) * groups for _ in range(2))
    if chance.random() < 0.1:
        groups, m = c, c
    kh, kw = ((k := chance.choice((1, 1, 3, 3, 5, 7))), k) if chance.random() < 0.8 else (chance.randint(1, 31), 3)
    h, w = chance.randint(kh, 200), chance.randint(kw, 200)
    pad_h, pad_w = chance.randint(0, kh // 2), chance.randint(0, kw // 2)
    sizes = (chance.choice((1, 1, 2, 8, 32)), c, h, w, m, kh, kw, pad_h, pad_w)
    stride, dilation = chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 1, 2))
    dilation = dilation if (kh - 1) * dilation < h and (kw - 1) * dilation < w else 1
    return ConvProblem(
        *sizes, stride_h=stride, stride_w=stride, dilation_h=dilation, dilation_w=dilation, groups=groups,
        precision=chance.choice(("fp32", "fp32", "tf32")),
    )  # fmt: skip


@pytest.mark.parametrize("device", [H200, A100], ids=str)
def test_auto_launches_kernels_of_the_set_alone(device):
    chance, planned, draws = random.Random(7), 0, PROBLEMS if device is H200 else PROBLEMS // 10
    for _ in range(draws):
        problem = drawn(chance)
        aligned, residual, prepared = (chance.random() < share for share in (0.8, 0.2, 0.5))
        try:
            plan = select.plan(problem, device, "auto", prepared, residual, aligned)
        except UnsupportedProblem:
            continue
        planned += 1
        options = CallOptions(aligned, residual=residual, packed=prepared)
        assert kernel_set.holds(device.arch, select.launches_of(plan, problem, options)), (problem, plan)
    assert planned > 0.95 * draws


def test_an_algorithm_that_is_named_may_take_kernels_beyond_the_set():
    odd = ConvProblem(4, 64, 20, 20, 64, 2, 3)
    plan = select.plan(odd, H200, "fp16x3")
    assert plan.algorithm == "fp16x3"
    assert not kernel_set.holds(H200.arch, select.launches_of(plan, odd, CallOptions()))
    assert select.plan(odd, H200).algorithm != "fp16x3"


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name.startswith(("fp16x3", "tf32x3"))])
def test_every_listed_variant_is_of_its_algorithm(name):
    """The first configurations of typical layers have variants that the list may hold: it is of the current macros."""
    typical = [ConvProblem(n, 64, 28, 28, 64, k, k, k // 2, k // 2) for n in (1, 32) for k in (1, 3, 5)]
    typical += [ConvProblem(8, 3, 28, 28, 16, 3, 3, 1, 1), ConvProblem(8, 16, 28, 28, 16, 1, 1)]
    columns = {frozenset(macros) for macros in ALGORITHMS[name].variants("sm_90a")}
    for problem in typical:
        try:
            config = ALGORITHMS[name].configure(problem, H200)
        except ValueError:
            continue
        launch = ALGORITHMS[name].launches(problem, config, CallOptions())[-1]
        assert frozenset(launch.macros) in columns
