"""Transposed convolutions on a GPU compared with float64: calls, blocks, converted models, and CUDA graphs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.device import device_spec
from tests.gpu.problems import TOLERANCE, assert_same_with_non_finite, rel_l2_error

OURS = {1: cuconv.nn.conv_transpose1d, 2: cuconv.nn.conv_transpose2d}
THEIRS = {1: F.conv_transpose1d, 2: F.conv_transpose2d}
LAYERS = [  # (N, C, M), the sizes of image and filter, and the geometry, as vocoders, generators and U-Nets have them
    ((1, 512, 256), (57,), (16,), {"stride": 8, "padding": 4}),
    ((2, 128, 64), (333,), (4,), {"stride": 2, "padding": 1}),
    ((1, 64, 32), (129,), (11,), {"stride": 5, "padding": 3}),
    ((2, 32, 48), (65,), (7,), {"padding": 6, "dilation": 2}),
    ((3, 24, 16), (31,), (5,), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    ((2, 128, 64), (28, 28), (2, 2), {"stride": 2}),
    ((2, 100, 256), (1, 1), (4, 4), {}),
    ((2, 256, 128), (8, 8), (4, 4), {"stride": 2, "padding": 1}),
    ((1, 64, 32), (33, 17), (3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 16, 24), (13, 7), (5, 3), {"stride": (2, 3), "padding": (2, 1), "output_padding": (0, 2)}),
]
layers = pytest.mark.parametrize(("channels", "size", "filters", "geometry"), LAYERS, ids=str)


def operands(channels, size, filters, geometry):
    n, c, m = channels
    generator = torch.Generator("cuda").manual_seed(7)
    shapes = (n, c, *size), (c, m // geometry.get("groups", 1), *filters), (m,)
    return [torch.randn(shape, device="cuda", generator=generator) for shape in shapes]


def truth_of(x, weight, bias, **geometry):
    return THEIRS[x.dim() - 2](x.double(), weight.double(), bias.double(), **geometry)


def last_in_memory(t, dtype):
    """The same tensor in half precision, with the channels of a pixel together in memory."""
    t = t.to(dtype)
    return t.mT.contiguous().mT if t.dim() == 3 else t.to(memory_format=torch.channels_last)


@torch.no_grad()
@layers
def test_calls_and_blocks(channels, size, filters, geometry):
    x, weight, bias = operands(channels, size, filters, geometry)
    infinite = x.clone()
    infinite[-1, x.shape[1] // 2, ..., -1], infinite[0, 0, 0] = torch.inf, torch.nan
    for data in (x, infinite, x * 1e18):
        for is_ready in (False, True):  # torch computes while kernels compile
            truth = truth_of(data, weight, bias, **geometry)
            assert_same_with_non_finite(OURS[len(size)](data, weight, bias, **geometry), truth)
            with cuconv.nn.enabled():
                assert_same_with_non_finite(THEIRS[len(size)](data, weight, bias, **geometry), truth)
            if not is_ready:
                cuconv.wait_for_kernels()


@torch.no_grad()
@layers
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(channels, size, filters, geometry, dtype):
    if not device_spec(torch.cuda.current_device()).arch.startswith("sm_90"):
        pytest.skip("half precision needs a Hopper GPU")
    x, weight, bias = operands(channels, size, filters, geometry)
    x, weight, bias = last_in_memory(x, dtype), last_in_memory(weight, dtype), bias.to(dtype)
    truth = truth_of(x, weight, bias, **geometry)
    for _ in range(2):
        out = OURS[len(size)](x, weight, bias, **geometry)
        assert out.dtype == dtype
        # torch computes other layers, in a memory format of its own, and rounds before it adds the bias.
        is_ours = channels[1] // geometry.get("groups", 1) % 8 == 0
        assert out.stride() == last_in_memory(out, dtype).stride() or not is_ours
        roundings = 1.05 if is_ours else 1.5
        assert rel_l2_error(out, truth) <= roundings * rel_l2_error(truth.to(dtype), truth) + 1e-6
        cuconv.wait_for_kernels()


@torch.no_grad()
@layers
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3)])
def test_a_converted_layer_with_batch_norm_and_activation(channels, size, filters, geometry, dtype, tolerance):
    torch.manual_seed(3)
    _, c, m = channels
    kind, norm = ((nn.ConvTranspose1d, nn.BatchNorm1d), (nn.ConvTranspose2d, nn.BatchNorm2d))[len(size) - 1]
    model = nn.Sequential(kind(c, m, filters, **geometry), norm(m), nn.LeakyReLU(0.2)).eval().cuda()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    model, x = model.to(dtype), operands(channels, size, filters, geometry)[0].to(dtype)
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model, x)
    ours = converted(x)
    assert rel_l2_error(ours, truth) < tolerance and ours.stride() == model(x).stride()
    if dtype == torch.float32:
        assert [row.folded for row in report.replaced] == [("batch norm", "leaky_relu(0.2)")]


@torch.no_grad()
def test_a_graph_of_a_call():
    channels, size, filters, geometry = LAYERS[1]
    x, weight, bias = operands(channels, size, filters, geometry)
    cuconv.nn.conv_transpose1d(x, weight, bias, **geometry)
    cuconv.wait_for_kernels()
    cuconv.nn.conv_transpose1d(x, weight, bias, **geometry)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cuconv.nn.conv_transpose1d(x, weight, bias, **geometry)
    out.fill_(torch.nan)
    graph.replay()
    assert rel_l2_error(out, truth_of(x, weight, bias, **geometry)) < TOLERANCE
