"""Group normalisation, and squeeze and excitation, in graphs on a CPU: what is one call, and what stays torch's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import cuconv.nn
from cuconv.algorithms.planes import group_norm, nhwc_group_norm, nhwc_squeeze_excite, squeeze_excite
from cuconv.device import A100
from cuconv.nn import limits
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model

pytestmark = pytest.mark.usefixtures("nothing_compiled")
SIZES = ((2, 16, 16), (5, 19, 17), (1, 12, 23))
FUNCTIONS = {"silu": nn.SiLU(), "relu": nn.ReLU(), "leaky_relu(0.2)": nn.LeakyReLU(0.2), "none": nn.Identity()}


class Excite(nn.Module):
    """Squeeze and excitation as most models write it; pool: the means; gate: the second activation."""

    def __init__(self, channels=8, hidden=3, pool=None, gate=None, bias=True):
        super().__init__()
        self.pool, self.gate, self.act = pool or nn.AdaptiveAvgPool2d(1), gate or nn.Sigmoid(), nn.SiLU()
        self.squeeze = nn.Conv2d(channels, hidden, 1, bias=bias)
        self.excite = nn.Conv2d(hidden, channels, 1, bias=bias)

    def forward(self, x):
        return x * self.gate(self.excite(self.act(self.squeeze(self.pool(x)))))


MIDDLES = {
    "group_norm": lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()),
    "squeeze_excite": Excite,
}
each_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def half(dtype, *shape):
    return torch.randn(shape).to(dtype, memory_format=torch.channels_last)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3), keepdim=True)


def network(middle, channels=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, channels, 3), middle, nn.Conv2d(channels, 4, 1)).eval()
    for name, parameter in model.named_parameters():
        if name.startswith("1."):
            nn.init.normal_(parameter)
    return model


def assert_same_at_every_size(model, on_a_gpu, kind, count):
    """Convert a model, and compare it at several sizes; count: calls of the kernel of a kind in each."""
    converted, report = cuconv.nn.convert(model, torch.randn(2, 3, 16, 16))
    assert report.captured
    for n, h, w in SIZES:
        x = torch.randn(n, 3, h, w)
        on_a_gpu.clear()
        ours = converted(x)
        assert close(ours, copy.deepcopy(model).double()(x.double()), 1e-5)
        assert ours.stride() == model(x).stride()
        assert [call["kind"] for call in on_a_gpu].count(kind) == count
    assert report.own_calls == 0
    return converted


@torch.no_grad()
@pytest.mark.parametrize("gate", [nn.Sigmoid(), nn.Hardsigmoid()], ids=str)
@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), Mean()], ids=["pool", "mean"])
@pytest.mark.parametrize("bias", [True, False])
def test_squeeze_and_excitation_is_one_call(on_a_gpu, pool, gate, bias):
    model = network(Excite(pool=pool, gate=gate, bias=bias))
    converted = assert_same_at_every_size(model, on_a_gpu, "squeeze_excite", 1)
    assert len(on_a_gpu) == 3  # and the two convolutions beside it
    assert converted._graphs.of_calls()[0].packed_bytes > 2 * 2**20  # those of the two convolutions alone
    x = torch.randn(1, 3, 9, 9)
    for parameter in model[1].parameters():
        parameter.mul_(-2)
    converted.refresh(model)
    assert close(converted(x), model(x), 1e-5)


@torch.no_grad()
def test_gates_may_stand_first_and_images_have_other_readers(on_a_gpu):
    class Around(Excite):
        def forward(self, x):
            return self.gate(self.excite(self.act(self.squeeze(self.pool(x))))) * x + x

    assert_same_at_every_size(network(Around()), on_a_gpu, "squeeze_excite", 1)


def other_images(model, x):
    y = model.conv(x)
    return y.neg() * torch.sigmoid(model.up(F.relu(model.down(y.mean((2, 3), keepdim=True)))))


def read_twice(model, x):
    y = model.conv(x)
    gate = torch.sigmoid(model.up(F.relu(model.down(y.mean((2, 3), keepdim=True)))))
    return y * gate + gate


def padded_layer(model, x):
    y = model.conv(x)
    return y * torch.sigmoid(model.wide(F.relu(model.down(y.mean((2, 3), keepdim=True)))))


def rows_alone(model, x):
    y = model.conv(x)
    return y * torch.sigmoid(model.up(F.relu(model.down(y.mean((2,), keepdim=True)))))


def one_gate(model, x):
    y = model.conv(x)
    return y * torch.sigmoid(model.one(F.relu(model.down(y.mean((2, 3), keepdim=True)))))


@torch.no_grad()
@pytest.mark.parametrize("function", [other_images, read_twice, padded_layer, rows_alone, one_gate])
def test_what_only_resembles_it_stays_as_it_is(on_a_gpu, function):
    torch.manual_seed(0)
    layers = {"down": nn.Conv2d(8, 4, 1), "up": nn.Conv2d(4, 8, 1), "one": nn.Conv2d(4, 1, 1)}
    layers["wide"] = nn.Conv2d(4, 8, 3, padding=1)
    model = Model(function, conv=nn.Conv2d(3, 8, 3), **layers).eval()
    assert_same_at_every_size(model, on_a_gpu, "squeeze_excite", 0)


@torch.no_grad()
def test_channels_that_the_kernel_does_not_take(on_a_gpu):
    assert_same_at_every_size(network(Excite(6), 6), on_a_gpu, "squeeze_excite", 0)


@torch.no_grad()
@each_half
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("kind", MIDDLES)
def test_half_precision_is_one_call_too(on_a_gpu, kind, memory_format, dtype):
    model = network(MIDDLES[kind]()).to(dtype).to(memory_format=memory_format)
    converted, report = cuconv.nn.convert(model, half(dtype, 2, 3, 16, 16))
    assert report.captured and report.own_calls == 0
    for n, h, w in SIZES:
        x = half(dtype, n, 3, h, w)
        on_a_gpu.clear()
        ours = converted(x)
        assert close(ours, copy.deepcopy(model).double()(x.double()), 5e-2)
        assert ours.stride() == model(x).stride()
        precision = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
        assert [call["precision"] for call in on_a_gpu if call["kind"] == kind] == [precision]
        assert len(on_a_gpu) == 3  # and the two convolutions beside it


@torch.no_grad()
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_group_norm_takes_its_activation(on_a_gpu, name, affine):
    middle = nn.Sequential(nn.GroupNorm(2, 8, affine=affine, eps=1e-3), FUNCTIONS[name])
    assert_same_at_every_size(network(middle), on_a_gpu, "group_norm", 1)
    assert [call["activation"] for call in on_a_gpu if call["kind"] == "group_norm"] == [name]


@torch.no_grad()
def test_a_group_norm_that_something_else_reads_keeps_its_activation(on_a_gpu):
    def function(model, x):
        y = model.norm(model.conv(x))
        return y + F.silu(y)

    model = Model(function, conv=nn.Conv2d(3, 8, 3), norm=nn.GroupNorm(2, 8)).eval()
    assert_same_at_every_size(model, on_a_gpu, "group_norm", 1)
    assert [call["activation"] for call in on_a_gpu if call["kind"] == "group_norm"] == ["none"]


@torch.no_grad()
def test_signals_and_groups_of_odd_sizes_are_torchs(on_a_gpu):
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()).eval()
    converted, _ = cuconv.nn.convert(model, torch.randn(2, 3, 16))
    x = torch.randn(2, 3, 16)
    assert close(converted(x), model(x), 1e-5)
    model, x = network(nn.GroupNorm(7, 7), 7), torch.randn(2, 3, 15, 15)
    converted, _ = cuconv.nn.convert(model, x)
    on_a_gpu.clear()
    assert close(converted(x), model(x), 1e-5)
    assert "group_norm" not in [call["kind"] for call in on_a_gpu]


def kernels_of(dtype):
    """The kernel variants of a model in a type, beside those of its convolutions."""
    model, x = network(nn.Sequential(nn.GroupNorm(2, 8), Excite())).to(dtype), torch.randn(2, 3, 16, 16).to(dtype)
    converted, _ = cuconv.nn.convert(model, x)
    return [kernel for graph in converted._graphs.of_calls() for kernel in graph.kernels([dtype], "sm_90a")]


@torch.no_grad()
def test_a_graph_knows_its_kernels(on_a_gpu):
    assert {kernel.source for kernel in kernels_of(torch.float32)} == {group_norm.SOURCE, squeeze_excite.SOURCE}
    of_halves = [kernels_of(dtype) for dtype in (torch.float16, torch.bfloat16)]
    for is_bf16, kernels in enumerate(of_halves):
        assert {kernel.source for kernel in kernels} == {nhwc_group_norm.SOURCE, nhwc_squeeze_excite.SOURCE}
        assert {dict(kernel.macros)["BF16"] for kernel in kernels} == {is_bf16}


@torch.no_grad()
@each_half
def test_what_reads_a_group_norm_by_its_strides(on_a_gpu, dtype):
    def function(model, x):
        y = model.norm(model.conv(x))
        return torch.cat([y.flatten(2), y.flatten(2).mean(-1, keepdim=True)], 2), y

    model = Model(function, conv=nn.Conv2d(3, 8, 3), norm=nn.GroupNorm(2, 8)).eval().to(dtype)
    converted, report = cuconv.nn.convert(model, half(dtype, 2, 3, 16, 16))
    assert report.captured
    x = half(dtype, 3, 3, 12, 11)
    on_a_gpu.clear()
    for ours, theirs in zip(converted(x), model(x), strict=True):
        assert close(ours, theirs, 2e-2) and ours.stride() == theirs.stride()
    assert [call["kind"] for call in on_a_gpu] == ["prepared", "group_norm"]


@torch.no_grad()
def test_images_of_another_format_are_copied_ahead_of_a_group_norm(on_a_gpu):
    model = Model(lambda model, x: model.conv(model.norm(x)), conv=nn.Conv2d(8, 8, 3), norm=nn.GroupNorm(2, 8))
    model, x = model.eval().half(), torch.randn(2, 8, 9, 9).half()
    converted, _ = cuconv.nn.convert(model, x)
    on_a_gpu.clear()
    assert close(converted(x), model(x), 1e-2)
    assert [call["kind"] for call in on_a_gpu] == ["group_norm", "prepared"]


@torch.no_grad()
def test_other_gpus_are_torchs(on_a_gpu, monkeypatch):
    monkeypatch.setattr(limits, "spec_of", lambda tensor: A100)
    for middle in (Excite(), nn.GroupNorm(2, 8)):
        assert_same_at_every_size(network(middle), on_a_gpu, "squeeze_excite", 0)
        assert "group_norm" not in [call["kind"] for call in on_a_gpu]


@torch.no_grad()
@each_half
@pytest.mark.parametrize("name", ["nn", "torch"])
def test_a_view_behind_a_group_norm_may_be_a_copy(on_a_gpu, name, dtype):
    """torch allows the view of its own output, which is contiguous, and not of one in channels_last."""

    def function(model, x):
        y, norm = model.conv(x), model.norm
        y = norm(y) if name == "nn" else torch.group_norm(y, 2, norm.weight, norm.bias)
        return model.fc(y.contiguous().view(y.shape[0], -1))

    parts = {"conv": nn.Conv2d(3, 8, 3), "norm": nn.GroupNorm(2, 8), "fc": nn.Linear(8 * 36, 8)}
    model, x = Model(function, **parts).eval().to(dtype), half(dtype, 2, 3, 8, 8)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and len(report.replaced) == 2
    on_a_gpu.clear()
    assert close(converted(x), model(x), 5e-2)
    assert [call["kind"] for call in on_a_gpu].count("group_norm") == 1


@torch.no_grad()
@each_half
def test_images_in_another_format_stay_as_they_are(on_a_gpu, dtype):
    """The kernel would refuse them at each call."""
    model, x = nn.Sequential(Excite(), nn.Conv2d(8, 4, 1)).eval().to(dtype), torch.randn(2, 8, 9, 7).to(dtype)
    converted, _ = cuconv.nn.convert(model, x)
    on_a_gpu.clear()
    assert close(converted(x), copy.deepcopy(model).double()(x.double()), 5e-2)
    assert [call["kind"] for call in on_a_gpu] == ["prepared"] * 3


@torch.no_grad()
@each_half
def test_a_graph_without_a_layer_is_torchs(on_a_gpu, dtype):
    found = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found.append(function)
            return function(*args, **(kwargs or {}))

    model, x = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()).eval().to(dtype), half(dtype, 2, 8, 9, 7)
    compiled = torch.compile(model, backend="cuconv")
    expected = model(x)
    compiled(x)
    with Operators():
        output = compiled(x)
    assert torch.equal(output, expected) and not on_a_gpu
    assert found == [torch.ops.aten.native_group_norm.default, torch.ops.aten.silu.default]
