"""Tests of nhwc_scaled on a GPU: configurations, with every option of a call, and operands beyond FP16's range."""

from itertools import product

import pytest
import torch

import cuconv
from cuconv import ConvProblem, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.channels_last import scale_rows
from tests.gpu.half import LARGE, PROBLEMS, TF32, assert_configurations, assert_rounded_once, in_precision, tensors
from tests.gpu.problems import TOLERANCES, rel_l2_error

SCALED = ALGORITHMS["nhwc_scaled"]
SMALL = ConvProblem(3, 72, 13, 9, 40, 3, 3, 1, 1, precision=TF32)
COMPUTED = [one for one in (*PROBLEMS, *LARGE) if one.groups == 1 and one.c % 8 == 0]


def convolved(x, weight, **options):
    return cuconv.conv2d(x, weight, **SMALL.geometry, algorithm="nhwc_scaled", precision="tf32", **options)


def truth(x, weight):
    return reference.conv2d(x, weight, **SMALL.geometry)


@pytest.mark.parametrize("problem", COMPUTED, ids=lambda problem: problem.label)
def test_configurations(problem):
    assert_configurations(SCALED, in_precision(problem, TF32), repeats=30 if problem in LARGE else 3)


def test_images_in_clusters_of_every_size(monkeypatch):
    """Slices that stay in shared memory and that do not, and blocks without a number."""
    shapes = (1, 64, 224, 224), (2, 8, 5, 3), (5, 40, 57, 31)
    for shape, blocks, room in product(shapes, scale_rows.CLUSTERS, (scale_rows.ROOM, 0)):
        monkeypatch.setattr(scale_rows, "CLUSTERS", (blocks,))
        monkeypatch.setattr(scale_rows, "LEAST_SLICE", 0)
        monkeypatch.setattr(scale_rows, "ROOM", room)
        problem = ConvProblem(*shape, 16, 1, 1, precision=TF32)
        assert_configurations(SCALED, problem, repeats=1)


@pytest.mark.parametrize("sizes", [(1e-30, 1.0, 1e30), (1e30, 1e-30, 0.0), (1e-38, 1e36, 65504.0)], ids=str)
def test_images_and_filters_of_very_different_size(sizes):
    """Each has a factor of its own."""
    x, weight = tensors(SMALL)
    x = x * torch.tensor(sizes, device="cuda")[:, None, None, None]
    out, expected = convolved(x, weight), truth(x, weight)
    for image, size in enumerate(sizes):
        assert rel_l2_error(out[image], expected[image]) < TOLERANCES["tf32"] if size else not out[image].any()
    x, weight = tensors(SMALL)
    weight = weight * torch.logspace(-30, 30, SMALL.m, device="cuda")[:, None, None, None]
    out, expected = convolved(x, weight), truth(x, weight)
    for filter in range(SMALL.m):
        assert rel_l2_error(out[:, filter], expected[:, filter]) < TOLERANCES["tf32"]


def test_images_beside_an_unusual_one_keep_their_bits():
    x, weight = tensors(SMALL)
    before = convolved(x, weight)
    x[0] *= 1e20
    x[1, 0, 0, 0] = torch.nan
    assert torch.equal(convolved(x, weight)[2], before[2])


def test_numbers_at_a_millionth_of_the_largest_have_all_their_bits():
    """Half of the channels are small, and their weights make up for it."""
    x, weight = tensors(SMALL)
    x[:, ::2] *= 2.0**-20
    weight[:, 1::2] *= 2.0**-20
    assert_rounded_once(convolved(x, weight), truth(x, weight))


def test_zeros():
    x, weight = tensors(SMALL)
    assert not convolved(x * 0, weight).any() and not convolved(x, weight * 0).any()


def test_sums_that_overflow_and_small_ones():
    for scale in (1e18, 1e-18):
        x, weight = tensors(SMALL, scale=scale)
        assert_rounded_once(convolved(x, weight), truth(x, weight))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite(number):
    for place in ((0, 0, 0), (5, 6, 4), (71, 12, 8)):
        x, weight = tensors(SMALL)
        x[-1, *place] = number
        assert_rounded_once(convolved(x, weight), truth(x, weight), place)
    x, weight = tensors(SMALL)
    weight[0, 0, 0, 0], weight[-1, -1, -1, -1] = number, -number
    assert_rounded_once(convolved(x, weight), truth(x, weight))


def test_prepared_weights_give_the_same_bits():
    x, weight = tensors(SMALL)
    layer = cuconv.prepare(weight, **SMALL.geometry, algorithm="nhwc_scaled", precision="tf32")
    for _ in range(3):
        assert torch.equal(layer(x), convolved(x, weight))
