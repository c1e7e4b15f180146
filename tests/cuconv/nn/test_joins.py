"""Batch norms and activations behind a concatenation of convolutions: where they are folded, and that results stay."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn import backend
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model, batch_norm

HALVES = {torch.float16: 3e-3, torch.bfloat16: 3e-2}  # and the largest relative L2 error of a small model


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def made(function):
    """A model like MixNet's blocks: depthwise convolutions of groups of channels, and one of all."""
    torch.manual_seed(7)
    model = Model(function, norm=batch_norm(20), part=batch_norm(8), all=batch_norm(28))
    model.three = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
    model.five = nn.Conv2d(12, 12, 5, padding=2, groups=12)
    model.one = nn.Conv2d(20, 8, 1)
    return model.eval()


def parts(model, x):
    first, second = x.split([8, 12], 1)
    return [model.three(first), model.five(second)]


def mixnet(model, x):
    return F.silu(model.norm(torch.cat(parts(model, x), 1)))


def activated_twice(model, x):
    return torch.sigmoid(F.relu(torch.cat(parts(model, x), 1)))


def norm_of_a_part(model, x):
    three, five = parts(model, x)
    return F.relu(torch.cat([five, model.part(three)], -3))


def three_parts(model, x):
    return F.hardswish(model.all(torch.cat([*parts(model, x), model.one(x)], 1)))


def read_twice(model, x):
    y = torch.cat(parts(model, x), 1)
    return F.relu(model.norm(y)) + y.mean()


def part_read_twice(model, x):
    three, five = parts(model, x)
    return F.relu(model.norm(torch.cat([three, five], 1))) + three.mean()


def not_all(model, x):
    return F.relu(model.all(torch.cat([model.one(x), x], 1)))


def along_the_images(model, x):
    return F.relu(model.part(torch.cat([model.one(x), model.one(x * 2)])))


def the_same_twice(model, x):
    return F.relu(torch.cat([y := model.one(x), y], 1))


def a_part_with_a_sum(model, x):
    three, five = parts(model, x)
    return F.relu(torch.cat([three + model.one(x), five], 1))


NORM = ("batch norm",)
CASES = {  # what is folded into the layers three, five and one
    mixnet: ((*NORM, "silu"), (*NORM, "silu")),
    activated_twice: (("relu",), ("relu",)),
    norm_of_a_part: ((*NORM, "relu"), ("relu",)),
    three_parts: ((*NORM, "hardswish"),) * 3,
    read_twice: ((), ()),
    part_read_twice: ((), ()),
    not_all: ((),),
    along_the_images: ((), ()),
    the_same_twice: ((),),
    a_part_with_a_sum: (("residual",), (), ()),
}


@torch.no_grad()
@pytest.mark.parametrize("function", CASES)
def test_it_is_folded_into_all_parts_or_none(on_a_gpu, function):
    model, x = made(function), torch.randn(2, 20, 7, 9)
    truth = copy.deepcopy(model).double()
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and sorted(row.folded for row in report.replaced) == sorted(CASES[function])
    for images in (
        x,
        torch.randn(3, 20, 8, 6),
        torch.full_like(x, torch.inf),
        x.index_fill(1, torch.tensor([9]), torch.nan),
    ):
        ours, theirs = converted(images), truth(images.double())
        assert torch.equal(ours.isnan(), theirs.isnan()) and ours.is_contiguous()
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert report.own_calls == 0


@torch.no_grad()
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(on_a_gpu, dtype, layout):
    def function(model, x):
        return F.relu(model.norm(torch.cat([model.three(x), model.one(x)], 1)))

    model = Model(function, norm=batch_norm(24), three=nn.Conv2d(16, 8, 3, padding=1), one=nn.Conv2d(16, 16, 1)).eval()
    model = model.to(dtype).to(memory_format=layout)
    x = torch.randn(2, 16, 7, 9).to(dtype).contiguous(memory_format=layout)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and [row.folded for row in report.rows] == [("batch norm", "relu")] * 2
    ours = converted(x)
    assert close(ours, copy.deepcopy(model).double()(x.double()), HALVES[dtype]) and ours.stride() == model(x).stride()


@torch.no_grad()
def test_signals(on_a_gpu):
    layers = {"three": nn.Conv1d(6, 4, 3, padding=1), "one": nn.Conv1d(6, 2, 1), "norm": nn.BatchNorm1d(6)}
    model = Model(lambda model, x: F.relu(model.norm(torch.cat([model.three(x), model.one(x)], 1))), **layers).eval()
    model.norm.running_mean.normal_()
    x = torch.randn(2, 6, 11)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and [row.folded for row in report.rows] == [("batch norm", "relu")] * 2
    assert close(converted(x), copy.deepcopy(model).double()(x.double()))


@torch.no_grad()
def test_a_batch_norm_whose_statistics_may_change_stays(on_a_gpu):
    model, x = made(mixnet), torch.randn(2, 20, 7, 9)
    compiled = torch.compile(model, backend=backend.cuconv)
    assert close(compiled(x), model(x)) and {call["activation"] for call in on_a_gpu} == {"none"}


@torch.no_grad()
def test_an_exported_program(on_a_gpu):
    model, x = made(mixnet), torch.randn(2, 20, 7, 9)
    program = cuconv.nn.fold(torch.export.export(model, (x,)))
    assert close(program.module()(x), copy.deepcopy(model).double()(x.double()))
    assert [call["activation"] for call in on_a_gpu] == ["silu"] * 2
