"""The float64 reference and the two stages in torch, against torch's own convolution."""

import pytest
import torch
import torch.nn.functional as F

from cuconv import UnsupportedProblem, reference

# (N, C, H, W, M, KH, KW, pad_h, pad_w): odd sizes, H != W, the paper's filters and others, no and unequal padding
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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_both_are_torchs_convolution_in_float64(shape, has_bias, relu):
    x, weight, padding = operands(shape)
    bias = torch.linspace(-2, 2, len(weight)) if has_bias else None
    expected = F.conv2d(x.double(), weight.double(), bias.double() if has_bias else None, padding=padding)
    expected = F.relu(expected) if relu else expected
    torch.testing.assert_close(reference.conv2d(x, weight, padding, bias, relu), expected, rtol=1e-12, atol=1e-12)
    single = reference.two_stage(x, weight, padding, bias, relu)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


def test_relu_keeps_nan_and_replaces_negative_values():
    x = torch.tensor([-torch.inf, -1.0, 0.0, 2.0, torch.inf, torch.nan]).reshape(1, 1, 1, 6)
    expected = torch.tensor([0.0, 0.0, 0.0, 2.0, torch.inf, torch.nan]).reshape(1, 1, 1, 6)
    for convolve in (reference.conv2d, reference.two_stage):
        output = convolve(x, torch.ones(1, 1, 1, 1), relu=True).float()
        torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


def test_the_reference_does_not_change_its_operands():
    x, weight, padding = operands((2, 3, 5, 6, 4, 1, 1, 0, 0))
    bias = torch.full((4,), -1.0)
    before = [tensor.clone() for tensor in (x, weight, bias)]
    reference.conv2d(x.double(), weight.double(), padding, bias.double(), True)
    reference.two_stage(x, weight, padding, bias, True)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, weight, bias), strict=True))


@pytest.mark.parametrize(
    "steps",
    [
        {"stride": (2, 3), "padding": (2, 1), "dilation": (3, 2), "groups": 2},
        {"stride": 2, "padding": 1},
        {"padding": "same", "dilation": 2},
        {"padding": "valid"},
    ],
    ids=str,
)
def test_strides_dilations_and_groups_are_torchs(steps):
    kw = 3 if steps["padding"] == "same" else 2  # of odd size
    x, weight, _ = operands((2, 12, 15, 13, 8, 3, kw, 0, 0))
    weight, bias = weight[:, : 12 // steps.get("groups", 1)].contiguous(), torch.linspace(-3, 3, 8)
    expected = F.conv2d(x.double(), weight.double(), bias.double(), **steps).relu()
    output = reference.conv2d(x, weight, bias=bias, relu=True, **steps)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", [((0, 1), (0, 1)), ((3, 0), (2, 5)), "same"])
def test_padding_that_differs_at_both_ends_is_that_of_a_padded_input(padding):
    x, weight, _ = operands((2, 3, 9, 8, 5, 2, 4, 0, 0))
    steps = {} if padding == "same" else {"stride": (2, 1), "dilation": (1, 2)}
    rows, columns = ((0, 1), (1, 2)) if padding == "same" else padding
    expected = F.conv2d(F.pad(x.double(), (*columns, *rows)), weight.double(), **steps)
    torch.testing.assert_close(reference.conv2d(x, weight, padding, **steps), expected, rtol=1e-12, atol=1e-12)


def test_wrong_arguments_are_named():
    x, weight, _ = operands((2, 3, 9, 8, 5, 3, 3, 0, 0))
    with pytest.raises(TypeError, match="bias="):
        reference.conv2d(x, weight, torch.zeros(5))
    with pytest.raises(UnsupportedProblem, match="channels"):
        reference.conv2d(x, weight[:, :2])
    with pytest.raises(UnsupportedProblem, match="stride_h=0"):
        reference.conv2d(x, weight, stride=0)
