"""cuconv.nn under torch's tools: derivatives, vmap, subclasses of Tensor, views with a sign, torch.export."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

import cuconv.nn


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(120, 5))


class Way:
    """A way to cuConv: what is called instead of a model, and under which context."""

    def __init__(self, name, reference):
        self.context = cuconv.nn.enabled if name == "enabled" else nullcontext
        if name == "convert":
            self.model, _ = cuconv.nn.convert(reference, torch.randn(2, 3, 5, 6))
        elif name == "modules":
            self.model = nn.Sequential(*reference)
            self.model[0], self.model[4] = cuconv.nn.Conv2d(3, 4, 3, padding=1), cuconv.nn.Linear(120, 5)
            self.model.load_state_dict(reference.state_dict())
            self.model.eval()
        elif name == "conv2d":
            self.model = Functional(reference)
        else:
            self.model = reference

    def __call__(self, *arguments):
        with self.context():
            return self.model(*arguments)


class Functional(nn.Module):
    """The model with cuconv.nn.conv2d as a function."""

    def __init__(self, reference):
        super().__init__()
        self.inner = reference

    def forward(self, x):
        conv, norm, _, _, last = self.inner
        return last(norm(cuconv.nn.conv2d(x, conv.weight, conv.bias, padding=1)).relu().flatten(1))


WAYS = ("conv2d", "modules", "convert", "enabled")


def jvp(f, x, t):
    return torch.func.jvp(f, (x,), (t,))[1]


def dual(f, x, t):
    with torch.autograd.forward_ad.dual_level():
        result = f(torch.autograd.forward_ad.make_dual(x, t))
        return torch.autograd.forward_ad.unpack_dual(result).tangent


def gradient(f, x, t):
    return torch.func.grad(lambda x: f(x).square().sum())(x)


def per_sample(f, x, t):
    return torch.vmap(torch.func.grad(lambda image: f(image[None]).square().sum()))(x)


def second(f, x, t):
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad((first * t).sum(), x)[0]


def mapped(f, x, t):
    return torch.vmap(f)(torch.stack([x, t]))


FEATURES = {
    "backward": lambda f, x, t: torch.autograd.grad(f(x.clone().requires_grad_()).sum(), [], allow_unused=True),
    "jvp": jvp, "dual": dual, "grad": gradient, "per-sample": per_sample, "second": second, "vmap": mapped,
    "jacrev": lambda f, x, t: torch.func.jacrev(f)(x), "jacfwd": lambda f, x, t: torch.func.jacfwd(f)(x[:1]),
    "hessian": lambda f, x, t: torch.func.hessian(lambda x: f(x).square().sum())(x[:1, :, :5, :6]),
    "negative view": lambda f, x, t: f(torch.complex(x, x).conj().imag),
    "strided": lambda f, x, t: f(x.transpose(2, 3).contiguous().transpose(2, 3)),
    "inference": lambda f, x, t: torch.inference_mode()(f)(x), "one image": lambda f, x, t: f(x[:1]),
    "autocast": lambda f, x, t: torch.autocast("cpu", torch.bfloat16)(f)(x),
    "subclass": lambda f, x, t: f(TwoTensor(x, x)).a, "expanded": lambda f, x, t: f(x[:1].expand_as(x)),
}  # fmt: skip
del FEATURES["backward"]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("way", WAYS)
def test_a_feature_of_torch_gives_what_torch_gives(on_a_gpu, way, feature):
    reference = model().eval()
    x, tangent = torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 6)
    ours = FEATURES[feature](Way(way, reference), x, tangent)
    theirs = FEATURES[feature](reference, x, tangent)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, check_stride=False)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("way", ["conv2d", "modules", "convert"])
def test_torch_export_with_a_dynamic_batch(on_a_gpu, way, strict):
    reference, x = model().eval(), torch.randn(4, 3, 5, 6)
    batch = torch.export.Dim("batch", max=1000)
    program = torch.export.export(Way(way, reference).model, (x,), dynamic_shapes=({0: batch},), strict=strict)
    for images in (2, 40):
        x = torch.randn(images, 3, 5, 6)
        torch.testing.assert_close(program.module()(x), reference(x), rtol=1e-4, atol=1e-5)


def test_the_operator_itself_refuses_forward_mode(on_a_gpu):
    x, weight = torch.randn(1, 3, 5, 6), torch.randn(4, 3, 1, 1)
    arguments = (weight, None, [1, 1], [0, 0], [1, 1], 1, "none", [], None, "fp32")
    with pytest.raises(Exception, match=r"cuconv.nn.conv2d"):
        dual(lambda x: torch.ops.cuconv.conv2d(x, *arguments), x, x)
    torch.testing.assert_close(torch.ops.cuconv.conv2d(x, *arguments), F.conv2d(x, weight))


@pytest.mark.parametrize("way", ["conv2d", "modules", "convert"])
def test_the_flop_counter_counts_as_many_operations(on_a_gpu, way):
    reference = model().eval()
    ours = Way(way, reference)
    counts = []
    for one in (reference, ours):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            one(torch.randn(2, 3, 5, 6))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
