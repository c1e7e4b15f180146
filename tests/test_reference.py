"""The float64 reference and the two stages in torch, against torch's own convolution."""

import pytest
import torch
import torch.nn.functional as F

from cuconv import reference

# (N, C, H, W, M, KH, KW, pad_h, pad_w): odd sizes, H != W, filters of the paper and beyond, none and unequal padding
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1, 0, 0),
    (2, 3, 5, 9, 17, 1, 1, 0, 0),
    (3, 17, 7, 13, 3, 3, 3, 1, 1),
    (2, 5, 11, 6, 4, 5, 5, 2, 2),
    (1, 2, 7, 8, 3, 7, 7, 3, 3),
    (2, 3, 9, 8, 5, 3, 5, 0, 1),
]


def operands(shape, dtype=torch.float32):
    n, c, h, w, m, kh, kw, pad_h, pad_w = shape
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, c, h, w, generator=generator, dtype=dtype)
    return x, torch.randn(m, c, kh, kw, generator=generator, dtype=dtype), (pad_h, pad_w)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reference_is_torchs_convolution_in_float64(shape):
    x, weight, padding = operands(shape)
    expected = F.conv2d(x.double(), weight.double(), padding=padding)
    torch.testing.assert_close(reference.conv2d(x, weight, padding), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_stages_give_the_convolution(shape):
    x, weight, padding = operands(shape)
    expected = F.conv2d(x.double(), weight.double(), padding=padding)
    torch.testing.assert_close(reference.two_stage(x, weight, padding).double(), expected, rtol=1e-4, atol=1e-5)


def test_stage_one_makes_a_plane_for_each_filter_position():
    x, weight, padding = operands((2, 3, 5, 6, 4, 3, 3, 1, 1))
    planes = reference.scalar_products(x, weight, padding)
    assert planes.shape == (9, 2, 4, 5, 6)
    # Position (0, 2) sees the input one row up and one column to the right.
    expected = torch.einsum("c,chw->hw", weight[1, :, 0, 2], x[0, :, 1:4, 2:5])
    torch.testing.assert_close(planes[2, 0, 1, 2:5, 1:4], expected)


def test_nan_stays_within_its_receptive_field():
    x, weight, padding = operands((1, 2, 6, 6, 3, 3, 3, 1, 1))
    x[0, 1, 2, 3] = torch.nan
    expected = torch.zeros(6, 6, dtype=torch.bool)
    expected[1:4, 2:5] = True
    assert torch.equal(reference.conv2d(x, weight, padding).isnan()[0, 0], expected)
