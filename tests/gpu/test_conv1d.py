"""conv1d on a GPU compared with float64: both libraries, both classes of precision, slices, residuals, and layers."""

import copy

import pytest
import torch
import torch.nn.functional as F

import cuconv.nn
from cuconv import algorithms, conv1d
from cuconv.device import device_spec
from tests.cuconv.nn.models import Generator
from tests.gpu.problems import TOLERANCE, assert_same_with_non_finite, refusal_allowed, rel_l2_error

SIGNALS = [  # (N, C, L, M, K) and the geometry: odd sizes, long dilated filters as vocoders have them, strides, groups
    ((1, 1, 1, 1, 1), {}),
    ((3, 17, 65, 31, 3), {"padding": 1}),
    ((2, 80, 57, 512, 7), {"padding": 3}),
    ((1, 64, 1001, 64, 11), {"padding": 25, "dilation": 5}),
    ((2, 32, 4097, 32, 3), {"padding": 5, "dilation": 5}),
    ((2, 32, 4096, 1, 7), {"padding": "same"}),
    ((1, 1, 16000, 512, 10), {"stride": 5}),
    ((2, 24, 333, 40, 2), {"padding": "same", "dilation": 4}),
    ((2, 48, 129, 48, 31), {"padding": 15, "groups": 48}),
    ((2, 64, 100, 96, 3), {"stride": 2, "groups": 4}),
]
signals = pytest.mark.parametrize(("sizes", "geometry"), SIGNALS, ids=str)


def operands(sizes, geometry):
    n, c, length, m, k = sizes
    generator = torch.Generator("cuda").manual_seed(7)
    shapes = (n, c, length), (m, c // geometry.get("groups", 1), k), (m,)
    return [torch.randn(shape, device="cuda", generator=generator) for shape in shapes]


def truth_of(x, weight, bias=None, **geometry):
    return F.conv1d(x.double(), weight.double(), None if bias is None else bias.double(), **geometry)


def last_in_memory(t, dtype):
    """The same tensor in half precision, with the channels of a position together in memory."""
    return t.to(dtype).mT.contiguous().mT


@signals
@pytest.mark.parametrize("algorithm", ["auto", *algorithms()])
def test_every_algorithm(algorithm, sizes, geometry):
    x, weight, bias = operands(sizes, geometry)
    is_dense = geometry.get("groups", 1) == 1 and {"stride", "dilation"}.isdisjoint(geometry)
    infinite = x.clone()
    infinite[-1, x.shape[1] // 2, x.shape[2] // 2], infinite[0, 0, 0] = torch.inf, torch.nan
    for data in (x, infinite, x * 1e18):
        with refusal_allowed(algorithm, is_dense):
            out = conv1d(data, weight, bias, **geometry, algorithm=algorithm)
            assert_same_with_non_finite(out, truth_of(data, weight, bias, **geometry))


@signals
def test_residual_activation_and_a_slice(sizes, geometry):
    x, weight, bias = operands(sizes, geometry)
    truth = truth_of(x, weight, bias, **geometry)
    residual = torch.randn(truth.shape, device="cuda")
    buffer = torch.full((truth.shape[0], truth.shape[1] + 9, truth.shape[2]), 7.0, device="cuda")
    out = buffer[:, 5:-4]
    options = {"activation": ("leaky_relu", 0.1), "residual": residual, "out": out}
    assert conv1d(x, weight, bias, **geometry, **options) is out
    assert rel_l2_error(out, F.leaky_relu(truth + residual, 0.1)) < TOLERANCE
    assert bool((buffer[:, :5] == 7).all()) and bool((buffer[:, -4:] == 7).all())
    first = conv1d(x[0], weight, bias, **geometry, residual=residual[0])
    assert first.shape == truth.shape[1:] and rel_l2_error(first, truth[0] + residual[0]) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("sizes", "geometry"), SIGNALS[1:6], ids=str)
def test_half_precision(sizes, geometry, dtype):
    if not device_spec(torch.cuda.current_device()).arch.startswith("sm_90"):
        pytest.skip("half precision needs a Hopper GPU")
    x, weight, bias = operands(sizes, geometry)
    x, weight, bias = last_in_memory(x, dtype), last_in_memory(weight, dtype), bias.to(dtype)
    out = conv1d(x, weight, bias, **geometry)
    truth = truth_of(x, weight, bias, **geometry)
    assert out.dtype == dtype and out.mT.is_contiguous()
    assert rel_l2_error(out, truth) <= 1.05 * rel_l2_error(truth.to(dtype), truth) + 1e-6


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy")
    x, weight, bias = operands((2, 12, 99, 20, 5), {})
    torch.cuda.synchronize()  # CuPy has a stream of its own
    out = conv1d(*map(cupy.from_dlpack, (x, weight, bias)), padding=2)
    cupy.cuda.get_current_stream().synchronize()
    assert isinstance(out, cupy.ndarray) and out.shape == (2, 20, 99)
    assert rel_l2_error(torch.from_dlpack(out), truth_of(x, weight, bias, padding=2)) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("padding", [3, "same"])
@pytest.mark.parametrize("length", [7, 8])
def test_layers_of_torch(padding, length):
    x, weight, bias = operands((2, 12, 99, 20, length), {})
    truth = truth_of(x, weight, bias, padding=padding)
    with cuconv.nn.enabled():
        assert rel_l2_error(F.conv1d(x, weight, bias, padding=padding), truth) < TOLERANCE
    assert rel_l2_error(cuconv.nn.conv1d(x, weight, bias, padding=padding), truth) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 3e-3)])
def test_a_converted_vocoder(dtype, tolerance):
    torch.manual_seed(1)
    model, x = Generator().eval().cuda().to(dtype), torch.randn(2, 10, 57, device="cuda", dtype=dtype)
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and len(report.replaced) >= 16
    assert rel_l2_error(converted(x), truth) < tolerance and converted(x).is_contiguous() and model(x).is_contiguous()
    assert report.own_calls == 0


@torch.no_grad()
def test_a_graph_of_a_call():
    x, weight, bias = operands((2, 64, 999, 64, 3), {})
    conv1d(x, weight, bias, padding=1)
    cuconv.wait_for_kernels()
    conv1d(x, weight, bias, padding=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = conv1d(x, weight, bias, padding=1)
    out.fill_(torch.nan)
    graph.replay()
    assert rel_l2_error(out, truth_of(x, weight, bias, padding=1)) < TOLERANCE
