"""Sums of convolutions of one input: which become one convolution, and that all compute what they did."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import cuconv.nn
from cuconv.nn import backend
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model

CONV2D = torch.ops.cuconv.conv2d.default
HALVES = {torch.float16: 3e-3, torch.bfloat16: 3e-2}  # and the largest relative L2 error of a small model


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def made(function, channels=4, axes=2, **layers):
    """A model in eval mode of a function and layers: options of convolutions, or the channels of batch norms."""
    torch.manual_seed(5)
    conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d))[axes - 1]
    found = {}
    for name, layer in layers.items():
        if isinstance(layer, dict):
            found[name] = conv(channels, channels, layer["k"], **{key: layer[key] for key in layer if key != "k"})
        else:
            found[name] = norm(layer)
            for values in (found[name].weight.data, found[name].running_var):
                values.uniform_(0.5, 2)
            for values in (found[name].bias.data, found[name].running_mean):
                values.normal_()
    return Model(function, **found).eval()


def three(model, x):
    return model.norm(model.conv(x)) + model.small_norm(model.small(x)) + model.own(x)


def repvgg(model, x):
    return F.relu(three(model, x))


def mobileone(model, x):
    out = 0
    out = model.small_norm(model.small(x)) + out
    out = out + model.own(x)
    out = model.norm(model.conv(x)) + out
    out += model.again(x)
    return F.relu(out)


def two(model, x):
    return model.small(x) + model.conv(x)


def pads(before, behind):
    return lambda model, x: model.conv(F.pad(x, (before, behind, 1, 1))) + model.small(x)


def norms(channels=4):
    return {"norm": channels, "small_norm": channels, "own": channels}


ONE = {  # sums that one convolution computes, with a residual or without
    "RepVGG": lambda: made(
        repvgg, conv={"k": 3, "padding": 1, "bias": False}, small={"k": 1, "bias": False}, **norms()
    ),
    "RepVGG, groups": lambda: made(
        repvgg, conv={"k": 3, "padding": 1, "groups": 2}, small={"k": 1, "groups": 2}, **norms()
    ),
    "RepVGG, depthwise": lambda: made(
        repvgg, conv={"k": 5, "padding": 2, "groups": 4}, small={"k": 1, "groups": 4, "bias": False}, **norms()
    ),
    "MobileOne": lambda: made(
        mobileone,
        conv={"k": 3, "padding": 1, "bias": False},
        again={"k": 3, "padding": 1},
        small={"k": 1, "bias": False},
        **norms(),
    ),
    "MobileOne, 1x1": lambda: made(
        lambda model, x: 0 + model.own(x) + model.norm(model.small(x)), small={"k": 1}, **norms()
    ),
    "zero alone": lambda: made(lambda model, x: sum([model.small(x), x]), small={"k": 1}),
    "a list": lambda: made(lambda model, x: sum([x, model.small(x), model.conv(x)]), conv={"k": 1}, small={"k": 1}),
    "strides": lambda: made(two, conv={"k": 3, "padding": 1, "stride": 2}, small={"k": 1, "stride": 2}),
    "even filters": lambda: made(two, conv={"k": 4, "padding": 1}, small={"k": 2, "bias": False}),
    "other strides, even filters": lambda: made(
        two, conv={"k": (4, 6), "padding": (1, 2), "stride": (3, 2)}, small={"k": 2, "stride": (3, 2)}
    ),
    "pads on one side": lambda: made(pads(2, 0), conv={"k": 3}, small={"k": 1}),
    "dilation": lambda: made(two, conv={"k": 3, "padding": 2, "dilation": 2}, small={"k": 1}),
    "dilation within a filter": lambda: made(
        two,
        conv={"k": 7, "padding": 3, "groups": 4},
        small={"k": 3, "padding": (2, 3), "dilation": (2, 3), "groups": 4},
    ),
    "rows and columns": lambda: made(
        lambda model, x: model.row(x) + model.conv(x) + model.column(x),
        conv={"k": 3, "padding": 1},
        row={"k": (1, 3), "padding": (0, 1)},
        column={"k": (3, 1), "padding": (1, 0), "bias": False},
    ),
    "a batch norm of the sum": lambda: made(
        lambda model, x: model.norm(model.small(x) + model.conv(x) + model.own(x)),
        conv={"k": 3, "padding": 1},
        small={"k": 1},
        **norms(),
    ),
    "another operand": lambda: made(
        lambda model, x: (model.small(x) + x.exp()) + model.conv(x), conv={"k": 3, "padding": 1}, small={"k": 1}
    ),
    "operands that broadcast": lambda: made(
        lambda model, x: 2 + (x.mean((2, 3), keepdim=True) + model.small(x)) + model.conv(x),
        conv={"k": 3, "padding": 1},
        small={"k": 1},
    ),
    "the same twice": lambda: made(lambda model, x: (lambda y: y + y)(model.small(x)), small={"k": 1}),
    "the same layer twice": lambda: made(lambda model, x: model.small(x) + model.small(x), small={"k": 1}),
}


def reads_a_branch(model, x):
    y = model.small(x)
    return model.conv(x) + y, y * 2


def reads_the_norm(model, x):
    y = model.own(x)
    return model.conv(x) + y, torch.sigmoid(y)


def reads_an_inner_sum(model, x):
    y = model.small(x) + x.exp()
    return model.conv(x) + y, torch.sigmoid(y)


BOTH = {"conv": {"k": 3, "padding": 1}, "small": {"k": 1}}
MORE = {  # and sums that take two
    "a branch that is read twice": lambda: made(reads_a_branch, **BOTH),
    "a batch norm that is read twice": lambda: made(
        lambda model, x: (reads_the_norm(model, x), model.small(x)), **BOTH, own=4
    ),
    "an inner sum that is read twice": lambda: made(reads_an_inner_sum, **BOTH),
    "another input": lambda: made(lambda model, x: model.conv(x) + model.small(x * 2), **BOTH),
    "a factor": lambda: made(lambda model, x: torch.add(model.conv(x), model.small(x), alpha=2), **BOTH),
    "an activation": lambda: made(lambda model, x: model.conv(x) + F.relu(model.small(x)), **BOTH),
    "groups": lambda: made(two, conv={"k": 3, "padding": 1, "groups": 2}, small={"k": 1}),
    "another centre": lambda: made(
        lambda model, x: model.conv(F.pad(x, (0, 2, 1, 1))) + model.small(x),
        conv={"k": 3},
        small={"k": 3, "padding": 1},
    ),
    "a cross": lambda: made(two, conv={"k": (1, 3), "padding": (0, 1)}, small={"k": (3, 1), "padding": (1, 0)}),
    "dilation between the taps": lambda: made(
        two, conv={"k": 5, "padding": 4, "dilation": 2}, small={"k": 3, "padding": 3, "dilation": 3}
    ),
    "a batch norm of another tensor": lambda: made(
        lambda model, x: model.conv(x) + model.own(x * 2) + model.small(x * 3), **BOTH, own=4
    ),
    "two inputs": lambda: made(
        lambda model, x: model.conv(x) + model.other(z := x * 2) + model.small(x) + model.last(z),
        **BOTH,
        other={"k": 3, "padding": 1},
        last={"k": 1},
    ),
}


def check(model, x, sizes, calls, on_a_gpu):
    """Convert a model, and compare both for images of some sizes, and the number of convolutions in a call."""
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and not report.left, str(report)
    for size in sizes:
        on_a_gpu.clear()
        images = torch.randn(size)
        ours, theirs = converted(images), copy.deepcopy(model).double()(images.double())
        assert len(on_a_gpu) == calls, str(report)
        for one, other in zip(*map(tree_leaves, (ours, theirs)), strict=True):
            assert close(one, other, 2e-6) and one.shape == other.shape and one.is_contiguous()
    assert report.own_calls == 0


SIZES = [(2, 4, 8, 9), (3, 4, 11, 7)]


@torch.no_grad()
@pytest.mark.parametrize("name", ONE)
def test_one_convolution_computes_a_sum(on_a_gpu, name):
    check(ONE[name](), torch.randn(SIZES[0]), SIZES, 1, on_a_gpu)


@torch.no_grad()
@pytest.mark.parametrize("name", MORE)
def test_other_sums_stay(on_a_gpu, name):
    check(MORE[name](), torch.randn(SIZES[0]), SIZES, 2, on_a_gpu)


@torch.no_grad()
def test_other_strides_with_as_many_outputs_stay(on_a_gpu):
    check(made(two, conv={"k": 2}, small={"k": 1, "stride": 2}), torch.randn(2, 4, 3, 3), [(2, 4, 3, 3)], 2, on_a_gpu)


@torch.no_grad()
def test_a_batch_norm_of_another_axis_is_no_branch(on_a_gpu):
    model = made(lambda model, x: model.conv(x[None]) + model.own(x)[None], conv={"k": 1})
    model.own = nn.BatchNorm1d(4).eval()
    model.own.running_var.uniform_(0.5, 2)
    x = torch.randn(4, 4, 9)
    converted, _ = cuconv.nn.convert(model, x)
    assert close(converted(x), copy.deepcopy(model).double()(x.double()), 2e-6)
    assert on_a_gpu[-1]["residual"]


@torch.no_grad()
def test_the_report_has_a_row_for_each_layer(on_a_gpu):
    _, report = cuconv.nn.convert(ONE["MobileOne"](), torch.randn(SIZES[0]))
    rows = {row.name: (row.kind, row.folded) for row in report.rows}
    assert rows == {
        "conv": ("conv", ("batch norm", "3 branches", "relu")),
        "again": ("branch", ()),
        "small": ("branch", ("batch norm",)),
    }
    products = 2 * 4 * 4 * 2 * 8 * 9
    assert sum(row.flop for row in report.rows) == products * (9 + 9 + 1)
    _, report = cuconv.nn.convert(ONE["the same twice"](), torch.randn(SIZES[0]))
    assert [(row.name, row.kind, row.flop) for row in report.rows] == [("small", "conv", products)]


@torch.no_grad()
@pytest.mark.parametrize("options", [{"stride": 2, "padding": 1}, {"padding": 1, "groups": 4}], ids=str)
def test_signals(on_a_gpu, options):
    small = {name: value for name, value in options.items() if name != "padding"}
    function, layers = (two, {}) if "stride" in options else (repvgg, norms())
    model = made(function, axes=1, conv={"k": 3, **options}, small={"k": 1, **small}, **layers)
    check(model, torch.randn(2, 4, 13), [(2, 4, 13), (1, 4, 20)], 1, on_a_gpu)


@torch.no_grad()
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(on_a_gpu, dtype, layout):
    model = made(repvgg, 8, conv={"k": 3, "padding": 1}, small={"k": 1}, **norms(8))
    model, x = (
        model.to(dtype).to(memory_format=layout),
        torch.randn(2, 8, 7, 9).to(dtype).contiguous(memory_format=layout),
    )
    converted, report = cuconv.nn.convert(model, x)
    on_a_gpu.clear()
    ours = converted(x)
    assert report.captured and len(on_a_gpu) == 1
    assert close(ours, copy.deepcopy(model).double()(x.double()), HALVES[dtype]) and ours.stride() == model(x).stride()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_weights_are_rounded_once(on_a_gpu, dtype):
    model = made(repvgg, 8, conv={"k": 3, "padding": 1}, small={"k": 1}, **norms(8)).to(dtype)
    free = dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO)
    exported = torch.export.export(model, (torch.randn(2, 8, 7, 9).to(dtype),), dynamic_shapes=((free,),))
    program = cuconv.nn.fold(exported)
    assert sum(node.target is CONV2D for node in program.graph.nodes) == 1
    truth = copy.deepcopy(model).double()
    gains = [norm.weight / (norm.running_var + norm.eps).sqrt() for norm in (truth.norm, truth.small_norm, truth.own)]
    weight = truth.conv.weight * gains[0][:, None, None, None]
    weight[:, :, 1, 1] += truth.small.weight[:, :, 0, 0] * gains[1][:, None] + torch.diag(gains[2])
    (ours,) = (value for value in program.state_dict.values() if value.shape == weight.shape)
    assert torch.equal(ours, weight.to(dtype))
    images = torch.randn(3, 8, 6, 11).to(dtype)
    assert close(program.module()(images), truth(images.double()), HALVES.get(dtype, 2e-6))


@torch.no_grad()
@pytest.mark.parametrize("name", ["RepVGG", "RepVGG, groups", "RepVGG, depthwise", "rows and columns", "a cross"])
def test_nan_and_infinity_reach_the_outputs_that_they_did(on_a_gpu, name):
    model = (ONE | MORE)[name]()
    if model.function is repvgg:
        model.function = three  # a ReLU makes 0 of one infinity
    x = torch.randn(1, 4, 12, 13)
    converted, report = cuconv.nn.convert(model, x)
    x[0, 0, 0, 0], x[0, 1, 5, 6], x[0, 3, 11, 12] = torch.inf, torch.nan, -torch.inf
    ours, theirs = converted(x), copy.deepcopy(model).double()(x.double())
    assert report.captured and 0 < (~theirs.isfinite()).sum() < theirs.numel()
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    assert close(ours[ours.isfinite()], theirs[theirs.isfinite()])


@torch.no_grad()
def test_a_write_to_a_branch_s_weight_counts(on_a_gpu):
    model, x = ONE["RepVGG"](), torch.randn(SIZES[0])
    converted, _ = cuconv.nn.convert(model, x)
    for changed in (converted, model):
        changed.small.weight.mul_(3)
        changed.own.weight.sub_(1)
    assert close(converted(x), copy.deepcopy(model).double()(x.double()), 2e-6)
    assert cuconv.nn.convert(model, x)[1].captured


@torch.no_grad()
def test_weights_that_may_change_are_not_added(on_a_gpu):
    model, x = ONE["zero alone"](), torch.randn(SIZES[0])
    branches = made(two, **BOTH)
    for options, calls in ((None, 2), ({"freeze": True}, 1)):
        compiled = torch.compile(branches, backend=backend.cuconv, dynamic=True, options=options)
        on_a_gpu.clear()
        assert close(compiled(x), branches(x)) and len(on_a_gpu) == calls
    compiled = torch.compile(model, backend=backend.cuconv)
    on_a_gpu.clear()
    assert close(compiled(x), model(x)) and [call["residual"] for call in on_a_gpu] == [True]


@torch.no_grad()
def test_a_batch_norm_in_training_mode_stays(on_a_gpu):
    model, x = made(lambda model, x: model.conv(x) + model.own(x), conv={"k": 1}, own=4), torch.randn(SIZES[0])
    model.own.training = True
    theirs = copy.deepcopy(model)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and report.rows[0].folded == ("residual",)
    assert close(converted(x), theirs(x)) and close(converted(x * 2), theirs(x * 2))
