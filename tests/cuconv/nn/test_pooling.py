"""Max pooling of graphs on a CPU: what becomes cuConv's operator, what stays torch's, and that results are the same."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv import UnsupportedProblem
from cuconv.call import NotReady
from cuconv.nn import backend, pooling
from cuconv.nn.formats import is_laid_out
from cuconv.nn.frozen import computed_by_torch
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model

TYPES = (torch.float16, torch.bfloat16)
LAYOUTS = (torch.contiguous_format, torch.channels_last)
POOLS = [
    nn.MaxPool2d(3, 2, 1),
    nn.MaxPool2d(2),
    nn.MaxPool2d((2, 3), (1, 2), (0, 1)),
    nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    nn.MaxPool2d(2, dilation=3),
]
each_pool = pytest.mark.parametrize("pool", POOLS, ids=str)
MAX_POOL2D = torch.ops.cuconv.max_pool2d.default


@pytest.fixture
def pools(on_a_gpu, monkeypatch):
    """The shapes of the images that cuConv pools."""
    shapes, pooled = [], pooling.pooled

    def counted(input, *options):
        output = pooled(input, *options)
        shapes.append(tuple(input.shape))
        return output

    monkeypatch.setattr(pooling, "pooled", counted)
    torch._dynamo.reset()
    yield shapes
    torch._dynamo.reset()


def channels_last(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype, memory_format=torch.channels_last)


def network(pool, channels=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), pool, nn.Conv2d(channels, 4, 1)).eval()


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@each_pool
def test_a_converted_model_pools_by_cuconv_at_every_size(pools, pool, dtype, layout):
    model = network(pool).to(dtype).to(memory_format=layout)
    x = torch.randn(2, 3, 16, 16).to(dtype, memory_format=layout)
    converted, report = cuconv.nn.convert(model, x)
    assert [row.name for row in report.rows] == ["0", "3"] and report.captured
    pools.clear()
    for n, h, w in ((2, 16, 16), (5, 19, 18), (1, 12, 23)):
        x = torch.randn(n, 3, h, w).to(dtype, memory_format=layout)
        ours, theirs = converted(x), model(x)
        assert close(ours, copy.deepcopy(model).double()(x.double()), 3e-2) and ours.stride() == theirs.stride()
    assert [shape[0] for shape in pools] == [2, 5, 1] and report.own_calls == 0


@torch.no_grad()
def test_a_compiled_model_pools_by_cuconv(pools):
    model, x = network(POOLS[0]).half(), torch.randn(2, 3, 16, 16).half()
    compiled = torch.compile(model, backend=backend.cuconv, dynamic=True)
    for images in (x, torch.cat([x, x, x])):
        assert close(compiled(images), copy.deepcopy(model).double()(images.double()), 3e-3)
    assert len(pools) == 2


def with_indices(model, x):
    y, indices = F.max_pool2d(model.conv(x), 2, return_indices=True)
    return y * indices


def of_other_channels(model, x):
    return F.max_pool2d(model.conv(x)[:, :4], 2)


def of_a_slice(model, x):
    return F.max_pool2d(model.conv(x)[:, :, ::2], 2)


def of_one_image(model, x):
    return F.max_pool2d(model.conv(x)[0], 2)


@torch.no_grad()
@pytest.mark.parametrize("function", [with_indices, of_other_channels, of_a_slice, of_one_image])
def test_what_stays_with_torch(pools, function):
    model, x = Model(function, conv=nn.Conv2d(3, 8, 3)).half().eval(), channels_last(2, 3, 16, 16)
    converted, report = cuconv.nn.convert(model, x)
    assert close(converted(x), model(x), 3e-3) and report.captured and not pools


@torch.no_grad()
def test_float32_stays_with_torch(pools):
    model, x = network(POOLS[0]), torch.randn(2, 3, 16, 16)
    converted, report = cuconv.nn.convert(model, x)
    assert close(converted(x), model(x)) and report.captured and not pools


@torch.no_grad()
@pytest.mark.parametrize("error", [UnsupportedProblem, NotReady])
def test_torch_computes_what_the_kernel_refuses(pools, error, monkeypatch):
    def refused(*_):
        raise error("no")

    monkeypatch.setattr(pooling, "pooled", refused)
    model, x = network(POOLS[0]).half(), channels_last(2, 3, 16, 16)
    converted, report = cuconv.nn.convert(model, x)
    assert close(converted(x), model(x), 3e-3) and report.captured


@torch.no_grad()
def test_torch_computes_where_it_is_asked_to(pools):
    model, x = network(POOLS[0]).half(), channels_last(2, 3, 16, 16)
    converted, _ = cuconv.nn.convert(model, x)
    pools.clear()
    with computed_by_torch():
        assert close(converted(x), model(x), 3e-3)
    assert not pools


@pytest.mark.parametrize(("pool", "has_pools"), [(nn.MaxPool2d(2), True), (nn.AvgPool2d(2), False)])
def test_a_graph_knows_whether_it_pools(pools, pool, has_pools):
    converted, _ = cuconv.nn.convert(network(pool).half(), torch.randn(1, 3, 12, 12).half())
    graphs = converted._graphs.of_calls()
    assert graphs and {bool(graph.kernels([torch.float16], "sm_90a")) for graph in graphs} == {has_pools}


@torch.no_grad()
def test_modules_outside_of_graphs_are_torchs(pools):
    x = channels_last(2, 8, 9, 9)
    with cuconv.nn.enabled():
        assert torch.equal(POOLS[0](x), F.max_pool2d(x, 3, 2, 1)) and not pools


@torch.no_grad()
def test_an_exported_program_calls_the_operator(pools):
    model, x = network(POOLS[3]).half(), channels_last(2, 3, 16, 16)
    free = {place: torch.export.Dim.AUTO for place in (0, 2, 3)}
    program = cuconv.nn.fold(torch.export.export(model, (x,), dynamic_shapes=(free,)))
    assert [node.target for node in program.graph.nodes].count(MAX_POOL2D) == 1
    for images in (x, channels_last(3, 3, 19, 22)):
        pools.clear()
        assert close(program.module()(images), model(images), 3e-3) and len(pools) == 1


def options(pool):
    def pair(value):
        return [value, value] if isinstance(value, int) else list(value)

    return (*map(pair, (pool.kernel_size, pool.stride, pool.padding, pool.dilation)), pool.ceil_mode)


@each_pool
@pytest.mark.parametrize("dtype", [*TYPES, torch.float32])
def test_the_operator_passes_torchs_checks(pools, pool, dtype):
    for shape in ((2, 8, 11, 12), (1, 5, 9, 16)):
        x = channels_last(*shape, dtype=dtype).requires_grad_()
        torch.library.opcheck(MAX_POOL2D, (x, *options(pool)))
        output = MAX_POOL2D(x, *options(pool))
        assert torch.equal(output, pool(x)) and is_laid_out(output)


def test_gradients_are_torchs(pools):
    ours, theirs = (channels_last(2, 8, 9, 11).requires_grad_() for _ in range(2))
    theirs = ours.detach().clone().requires_grad_()
    MAX_POOL2D(ours, *options(POOLS[0])).square().sum().backward()
    POOLS[0](theirs).square().sum().backward()
    assert torch.equal(ours.grad, theirs.grad) and len(pools) == 1


def test_a_forward_mode_derivative_is_refused(pools):
    x = channels_last(2, 8, 9, 11)
    with torch.autograd.forward_ad.dual_level(), pytest.raises((NotImplementedError, RuntimeError)):
        MAX_POOL2D(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)), *options(POOLS[0]))


@torch.no_grad()
@pytest.mark.parametrize("pool", [POOLS[0], POOLS[3]], ids=str)
def test_a_pool_may_be_a_shortcut(pools, pool):
    def function(model, x):
        y = model.pool(model.stem(x))
        return F.relu(model.conv(y) + y)

    model = Model(function, stem=nn.Conv2d(3, 8, 3), pool=pool, conv=nn.Conv2d(8, 8, 1)).half().eval()
    x = channels_last(2, 3, 16, 16)
    converted, report = cuconv.nn.convert(model, x)
    assert close(converted(x), model(x), 3e-3) and pools and report.rows[1].folded == ("residual", "relu")
    assert "torch.channels_last" not in str(report.graphs.of_calls()[0])  # no copies
