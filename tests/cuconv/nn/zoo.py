"""Small models that are easily converted wrongly, each with an example and the calls that are made afterwards."""

import math
import random
from collections import deque, namedtuple
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune


class Model(nn.Module):
    """A function of a model and its arguments, with some modules and attributes."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *arguments, **keywords):
        return self.function(self, *arguments, **keywords)


@dataclass
class Entry:
    """make: a model in eval mode. example: what convert gets. calls: (arguments, keywords) of later calls, in order."""

    make: object
    example: object = None
    calls: list = field(default_factory=list)
    captured: bool | None = None  # None: either is right


def images(n=2, h=8, w=9, c=4, seed=5):
    return torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(seed))


def conv(c=4, m=4, k=1, **options):
    return nn.Conv2d(c, m, k, **options)


def batch_norm(c=4):
    norm = nn.BatchNorm2d(c)
    for values in (norm.weight.data, norm.running_var):
        values.uniform_(0.5, 2)
    for values in (norm.bias.data, norm.running_mean):
        values.normal_()
    return norm


def entry(function, *calls, example=None, captured=None, **attributes):
    """An entry of a model of a function; attributes are made anew for each model where they are callable."""

    def make():
        torch.manual_seed(3)
        return Model(function, **{name: value() for name, value in attributes.items()}).eval()

    found = [call if isinstance(call, tuple) and isinstance(call[-1], dict) else (call, {}) for call in calls]
    return Entry(make, images() if example is None else example, found, captured)


def one(value):
    return lambda: value


# Arguments


def optional_mask(model, x, mask=None):
    y = model.conv(x)
    return y if mask is None else y * mask


def optional_flag(model, x, *, double=False):
    y = model.conv(x)
    return y * 2 if double else y


def by_type(model, x):
    if isinstance(x, (list, tuple)):
        x = torch.cat(list(x))
    return model.conv(x) if torch.is_tensor(x) and hasattr(x, "shape") else None


def by_dtype(model, x):
    return model.conv(x.float()) if x.dtype != torch.float32 else F.relu(model.conv(x))


def by_rank(model, x):
    return model.conv(x) if x.dim() == 4 else F.relu(model.conv(x))


def by_gradient(model, x):
    return model.conv(x) * (2 if x.requires_grad else 1)


def several(model, x, others):
    return {"sum": model.conv(x) + others["y"], "parts": [model.conv(x), others["z"][0]], "n": 3, "none": None}


def spectrum(model, x):
    return torch.fft.rfft2(model.conv(x))


def complex_layer(model, x):
    return torch.view_as_complex(model.conv(x.real).unflatten(1, (2, 2)).movedim(2, -1).contiguous()) * x[:, :2]


def sparse(model, x):
    return F.relu(model.conv(x)).to_sparse(), model.adjacent * 2


def numbers(model, x):
    y = model.conv(x)
    return y.norm().item(), y.mean((1, 2, 3)).tolist()


Pair = namedtuple("Pair", "first second")

# Control flow on sizes and values


def by_width(model, x):
    return F.relu(model.conv(x)) if x.shape[-1] > 12 else model.conv(x)


def by_batch(model, x):
    return model.conv(x) if x.size(0) == 1 else model.conv(x) + 1


def by_parity(model, x):
    if x.shape[2] % 2:
        x = F.pad(x, (0, 0, 0, 1))
    return model.conv(x)


def pads_to_multiple(model, x):
    h, w = x.shape[-2:]
    x = F.pad(x, (0, -w % 4, 0, -h % 4))
    return model.conv(x)[..., :h, :w]


def loops_over_batch(model, x):
    return torch.stack([model.conv(image[None])[0] * (i + 1) for i, image in enumerate(x)])


def by_value(model, x):
    return model.conv(x) if x.mean() > 0 else F.relu(model.conv(x))


def asserts_a_size(model, x):
    torch._assert(x.shape[0] <= 3, "too many images")
    return model.conv(x)


def size_in_arithmetic(model, x):
    return model.conv(x) / (x.shape[2] * x.shape[3]) + x.shape[0] // 2


def reshapes(model, x):
    n, c, h, w = x.shape
    return model.conv(x).view(n, 2, c // 2, h * w).transpose(1, 2).reshape(n, c, h, w)


def compares_sizes(model, x):
    y = model.conv(x)
    return y.transpose(2, 3) @ y if x.shape[2] != x.shape[3] else y


def interpolates(model, x):
    y = F.interpolate(model.conv(x), size=(x.shape[2] * 2, x.shape[3] * 2), mode="bilinear", align_corners=False)
    return F.adaptive_avg_pool2d(y, (x.shape[2] // 2, 3))


def images_of_a_mask(model, x):
    return model.conv(x[x.mean((1, 2, 3)) > 0])


def pixels_of_a_mask(model, x):
    return model.fc(x.movedim(1, 3)[x[:, 0] > 0])


# Fully connected layers of other shapes


def linear_of_parameters(model, x):
    return F.linear(x, model.weight, model.bias)


def parameter(*shape):
    return lambda: nn.Parameter(torch.randn(shape))


# State


def counts_calls(model, x):
    model.calls += 1
    return model.conv(x) * model.calls


def counts_in_a_list(model, x):
    model.seen.append(x.shape[0])
    return model.conv(x) + len(model.seen)


def counts_in_a_buffer(model, x):
    model.counter += 1
    return model.conv(x) + model.counter


def keeps_last_output(model, x):
    before, model.last = model.last, model.conv(x)
    return model.last if before is None else model.last + before.mean()


def changes_at_the_third_call(model, x):
    model.calls += 1
    return model.conv(x) if model.calls < 6 else model.conv(x) * 2


def moving_average(model, x):
    y = model.conv(x)
    model.mean.mul_(0.9).add_(0.1 * y.mean())
    return y - model.mean


# Random numbers and modes


def adds_noise(model, x):
    return model.conv(x) + torch.rand_like(x)


def python_noise(model, x):
    return model.conv(x) * (1 + random.random())


def drops(model, x):
    return F.dropout(model.conv(x), 0.5, training=True)


def by_grad_mode(model, x):
    return model.conv(x) * (2 if torch.is_grad_enabled() else 1)


def maps_images(model, x):
    return torch.vmap(lambda image: model.conv(image[None])[0])(x)


def maps_to_the_same(model, x):
    return model.conv(x), torch.vmap(lambda image: model.other.bias * 2)(x)


def derives(model, x):
    return torch.func.grad(lambda y: model.conv(y).square().sum())(x)


def no_grad_inside(model, x):
    with torch.no_grad():
        y = model.conv(x)
    return F.relu(y) + model.other(x)


def autocast_inside(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = model.conv(x)
    return y.float() + model.other(x)


def autocast_off_inside(model, x):
    with torch.autocast("cpu", enabled=False):
        return model.conv(x.float())


# Writes and aliases


def writes_by_overload(model, x):
    x = x + 0
    y = model.conv(x)
    torch.ops.aten.mul_.Tensor(x, 3)
    return y + x


def writes_through_a_view(model, x):
    x = x + 0
    y = model.conv(x)
    x[:, :2].mul_(2)
    return y + x


def adds_in_place_through_an_alias(model, x):
    y = model.conv(x)
    z = y.view_as(y)
    z += 1
    return y + x


def adds_to_the_shortcut(model, x):
    x = x + 0
    z = x.detach()
    x += model.conv(x)
    return F.relu(x) + z


def relu_of_a_result_that_is_used(model, x):
    y = model.conv(x)
    F.relu_(y)
    return y + x


def adds_to_the_input(model, x):
    x = x.clone()
    y = model.norm(model.conv(x))
    x.add_(y)
    return F.relu(x) * y


def writes_its_own_argument(model, x):
    x.mul_(2)
    return model.conv(x)


def writes_the_weight(model, x):
    y = model.conv(x)
    model.conv.weight.data.mul_(1.0)
    return y


def out_argument(model, x):
    y = torch.empty_like(x)
    torch.mul(x, 2, out=y)
    return model.conv(y)


def chunks(model, x):
    x = x + 0
    a, b = x.chunk(2, 1)
    y = model.narrow(a)
    b.mul_(2)
    a.add_(1)
    return torch.cat([y, model.narrow(a), b], 1)


def clamps_before_the_norm(model, x):
    x = x + 0
    y = model.conv(x)
    x.clamp_(-6, 6)
    return model.norm(y) + x


def clamps_before_the_relu_of_a_branch(model, x):
    x = x + 0
    y = model.conv(x)
    x.clamp_(-6, 6)
    return torch.cat([F.relu(y), model.other(x)], 1)


def clamps_what_branches_of_branches_read(model, x):
    x = torch.cat([model.conv(x), model.other(x)], 1)
    y = model.wide(x)
    x.clamp_(-6, 6)
    return torch.cat([y, model.wide(x)], 1)


def unbatched_cat(model, x):
    return torch.cat([model.conv(x), model.other(x)], -3)


# Batch norm and weights that are read elsewhere


def tied(model, x):
    y = F.relu(model.norm(model.conv(x)))
    return F.conv_transpose2d(y, model.conv.weight)


def penalty(model, x):
    return model.norm(model.conv(x)), model.conv.weight.square().sum()


def used_twice(model, x):
    return model.norm(model.conv(x)) + model.conv(x * 2)


def norm_used_twice(model, x):
    y = model.conv(x)
    return model.norm(y) + model.norm(y * 2)


def functional_norm(model, x):
    norm = model.norm
    return F.relu(F.batch_norm(model.conv(x), norm.running_mean, norm.running_var, norm.weight, norm.bias, False))


def norm_in_training(model, x):
    return F.batch_norm(model.conv(x), None, None, model.norm.weight, model.norm.bias, True)


def weight_scaled(model, x):
    return F.conv2d(x, model.conv.weight * 2, model.conv.bias)


def weight_copied_and_written(model, x):
    w = model.conv.weight.clone()
    w.mul_(2)
    return F.conv2d(x, w + 1, model.conv.bias)


def weight_with_noise(model, x):
    return F.conv2d(x, model.conv.weight + torch.rand_like(model.conv.weight), model.conv.bias)


def weight_by_input(model, x):
    return F.conv2d(x, model.conv.weight * x.mean(), model.conv.bias)


def weight_standardised(model, x):
    w = model.conv.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-3)
    return F.conv2d(x, w, model.conv.bias)


# Modules


class Patched(nn.Module):
    def __init__(self, what):
        super().__init__()
        torch.manual_seed(3)
        self.conv = conv()
        if what == "forward":
            forward = self.conv.forward
            self.conv.forward = lambda x: forward(x) * 2
        elif what == "_conv_forward":
            inner = self.conv._conv_forward
            self.conv._conv_forward = lambda x, w, b: inner(x, w, b) + 1
        elif what == "root":
            self.forward = lambda x: self.conv(x) * 3

    def forward(self, x):
        return self.conv(x)


class LoRA(nn.Conv2d):
    """A subclass with another forward."""

    def forward(self, x):
        return super().forward(x) + 0.5 * F.conv2d(x, self.weight)


def hooked(kind):
    def make():
        torch.manual_seed(3)
        model = nn.Sequential(conv(), batch_norm(), nn.ReLU())
        if kind == "pre":
            model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        else:
            model[1].register_forward_hook(lambda module, inputs, output: output + 1)
        return model.eval()

    return make


def parametrized(how):
    def make():
        torch.manual_seed(3)
        model = nn.Sequential(conv(), nn.ReLU(), conv())
        if how == "weight norm":
            parametrizations.weight_norm(model[0])
        elif how == "spectral norm":
            parametrizations.spectral_norm(model[0])
        elif how == "pruned":
            prune.random_unstructured(model[0], "weight", 0.5)
        return model.eval()

    return make


def odd_attributes():
    torch.manual_seed(3)
    model = nn.Sequential(conv(4, 4, 3, padding=1), nn.ReLU())
    model[0].stride = (2,)
    return model.eval()


def many_rows():
    """A filter that no algorithm of cuConv computes."""
    return nn.Sequential(nn.Conv2d(4, 3, (40, 3), (2, 1), (20, 1)), nn.ReLU()).eval()


def shared_layer():
    torch.manual_seed(3)
    layer = conv()
    return nn.Sequential(layer, nn.ReLU(), layer, batch_norm(), layer).eval()


def calls_a_method(model, x):
    return model.first.conv._conv_forward(x, model.first.conv.weight, None)


def dataclass_like(model, x):
    return Pair(model.conv(x), x)


def empty_layers(model, x):
    return model.fc(x.mean((2, 3))[:, :0]) + model.conv(x).mean()


def double_residual(model, x):
    return model.conv(x) + x.double()


def broadcast_residual(model, x):
    return F.relu(model.conv(x) + x.mean((2, 3), keepdim=True))


def scaled_residual(model, x):
    return torch.add(model.conv(x), x, alpha=0.5)


def mish(model, x):
    return F.silu(model.norm(model.conv(x))) + F.hardswish(model.conv(x))


def splits(model, x):
    return torch.cat([model.conv(part) for part in x.split(4, 2)], 2)


def counts_chunks(model, x):
    return model.conv(x) * len(x.chunk(5, 2))


def squeezes(model, x):
    y = model.conv(x).mean((2, 3)).squeeze()
    return y.unsqueeze(0) if y.dim() == 1 else y


def squeezes_the_batch(model, x):
    y = model.conv(x).squeeze(0)
    return y * 2 if y.dim() == 3 else y


def by_layout(model, x):
    return model.conv(x) * (2 if x.is_contiguous() else 1)


def by_strides(model, x):
    n, c, h, w = x.shape
    a, b, d, e = x.stride()
    return model.conv(x.as_strided((n, c, h, w - 1, 2), (a, b, d, e, e)).mean(-1))


def writes_its_other_argument(model, x, y):
    output = model.conv(x)
    y.mul_(2)
    return output + x


def by_identity(model, x, y):
    return model.conv(x) if x is y else model.conv(x) + model.other(y)


def returns_a_size(model, x):
    return model.conv(x), x.shape


def random_branch(model, x):
    return model.conv(x.flip(-1) if random.random() < 0.5 else x)


def numpy_branch(model, x):
    return model.conv(x.flip(-1) if numpy.random.random() < 0.5 else x)


def counts_in_an_object(model, x):
    model.state.calls += 1
    model.state.seen.append(tuple(x.shape))
    return model.conv(x) * (2 if model.state.calls > 6 else 1)


@lru_cache
def grid(h, w):
    return torch.arange(h * w).float().view(h, w)


def adds_a_grid(model, x):
    return model.conv(x) + grid(*x.shape[2:])


def sets_flags(model, x):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        return model.conv(x)


def by_sign(model, x, scale):
    return model.conv(x) * math.copysign(1, scale)


two_convs = {"conv": conv, "other": conv}
normed = {"conv": conv, "norm": batch_norm}
X, Y = images(), images(seed=7)
LAYOUTS = [(F.pad(X, (1,) * 4)[:, :, 1:-1, 1:-1],), (X.contiguous(memory_format=torch.channels_last),)]
Z = torch.complex(X, images(seed=8))
ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(6))
LATER = [(X,), (images(1),), (images(3, 11, 13),), (images(5, 7, 20),), (X,)]

ZOO = {
    # arguments
    "optional mask": entry(optional_mask, (X,), (X, torch.rand(2, 1, 8, 9)), ((X,), {"mask": None}), (X,), conv=conv),
    "mask in the example": entry(optional_mask, (X,), (X, X), example=(X, torch.rand(2, 4, 8, 9)), conv=conv),
    "a mask of one channel": entry(
        optional_mask, (X, X), (X, torch.rand(2, 1, 8, 9)), (images(3), torch.rand(3, 1, 8, 9)), (X,), captured=True,
        example=(X, torch.rand(2, 1, 8, 9)), conv=conv,
    ),
    "a flag": entry(optional_flag, ((X,), {"double": True}), (X,), conv=conv),
    "a flag in the example": entry(
        optional_flag, ((X,), {"double": False}), ((X,), {"double": True}), (X,), example={"x": X, "double": True},
        conv=conv,
    ),
    "by type": entry(by_type, ((X, X),), ([X],), (X,), conv=conv),
    "by dtype": entry(by_dtype, (X.double(),), (X,), (X.half(),), conv=conv),
    "by rank": entry(by_rank, (X[0],), (X,), conv=conv),
    "by requires_grad": entry(by_gradient, (X.clone().requires_grad_(),), (X,), conv=conv),
    "a grid in a cache": entry(adds_a_grid, *LATER, captured=True, conv=conv),
    "by sign": entry(by_sign, (X, -0.0), (X, 0.0), (X, -1.0), example=(X, 0.0), conv=conv),
    "nested arguments": entry(
        several, (X, {"y": images(seed=7), "z": (X,)}), (images(3), {"y": images(3), "z": (X, 1)}),
        example=(X, {"y": X, "z": (X,)}), conv=conv,
    ),
    "a named tuple": entry(dataclass_like, *LATER, conv=conv),
    # outputs that are no dense tensors of real numbers
    "a spectrum": entry(spectrum, *LATER, captured=True, conv=conv),
    "complex numbers": entry(complex_layer, (2 * Z,), (Z[:1],), example=Z, captured=True, conv=conv),
    "sparse": entry(sparse, *LATER, conv=conv, adjacent=lambda: nn.Buffer(torch.eye(3).to_sparse())),
    "numbers": entry(numbers, *LATER, conv=lambda: conv(4, 16, 3)),
    # sizes and values
    **{
        function.__name__: entry(function, *LATER, conv=conv)
        for function in (
            by_width, by_batch, by_parity, pads_to_multiple, loops_over_batch, by_value, size_in_arithmetic, reshapes,
            compares_sizes, interpolates, asserts_a_size, splits, counts_chunks, squeezes, squeezes_the_batch,
            returns_a_size,
        )
    },
    **{
        function.__name__: entry(function, *LATER, *LAYOUTS, conv=conv) for function in (by_layout, by_strides)
    },
    "by layout, of another": entry(by_layout, *LATER, *LAYOUTS, example=LAYOUTS[0], conv=conv),
    **{
        f"{function.__name__}{of}": entry(function, (X, X), (X, X[:]), (X, Y), example=example, **two_convs)
        for function in (writes_its_other_argument, by_identity)
        for of, example in (("", (X, Y)), (", of one", (X, X)))
    },
    # sizes that depend on data
    **{
        function.__name__: entry(function, *LATER, (-X.abs(),), captured=True, conv=conv, fc=lambda: nn.Linear(4, 3))
        for function in (images_of_a_mask, pixels_of_a_mask)
    },
    # fully connected layers
    **{
        f"a weight {weight} and a bias {bias}": entry(
            linear_of_parameters, (ROWS,), (ROWS[:2],), example=ROWS, captured=True,
            weight=parameter(*weight), bias=one(None) if bias is None else parameter(*bias),
        )
        for weight, bias in (((4,), None), ((5, 4), ()), ((5, 4), (1,)), ((5, 4), (1, 5)), ((5, 4), (5,)))
    },
    # state
    "counts calls": entry(counts_calls, *LATER, captured=False, conv=conv, calls=one(0)),
    "counts in a list": entry(counts_in_a_list, *LATER, captured=False, conv=conv, seen=list),
    "counts in a buffer": entry(
        counts_in_a_buffer, *LATER, captured=False, conv=conv, counter=lambda: nn.Buffer(torch.zeros(()))
    ),
    "counts in an object": entry(
        counts_in_an_object, *LATER, *LATER, captured=False, conv=conv,
        state=lambda: SimpleNamespace(calls=0, seen=deque()),
    ),
    "keeps the last output": entry(keeps_last_output, *LATER, captured=False, conv=conv, last=one(None)),
    "changes later": entry(changes_at_the_third_call, *LATER, *LATER, captured=False, conv=conv, calls=one(0)),
    "moving average": entry(
        moving_average, *LATER, captured=False, conv=conv, mean=lambda: nn.Buffer(torch.zeros(()))
    ),
    # random numbers and modes
    **{
        function.__name__: entry(function, *LATER, **two_convs)
        for function in (
            sets_flags, adds_noise, python_noise, random_branch, numpy_branch, drops, by_grad_mode, no_grad_inside,
            autocast_inside,
            autocast_off_inside,
        )
    },
    **{
        function.__name__: entry(function, *LATER, captured=False, **two_convs)
        for function in (maps_images, maps_to_the_same, derives)
    },
    # writes and aliases
    **{
        function.__name__: entry(function, *LATER, **two_convs, norm=batch_norm)
        for function in (
            writes_by_overload, writes_through_a_view, adds_in_place_through_an_alias, adds_to_the_shortcut,
            relu_of_a_result_that_is_used, adds_to_the_input, writes_its_own_argument, writes_the_weight, out_argument,
        )
    },
    **{  # the example is within the bounds of the clamp
        function.__name__: entry(
            function, (50 * X,), *LATER, captured=True, **two_convs, norm=batch_norm, wide=lambda: conv(8, 8)
        )
        for function in (
            clamps_before_the_norm, clamps_before_the_relu_of_a_branch, clamps_what_branches_of_branches_read,
        )
    },
    "chunks": entry(chunks, *LATER, narrow=lambda: conv(2, 2)),
    "unbatched cat": entry(unbatched_cat, (X[0],), (X,), example=X[0], **two_convs),
    # batch norm and weights
    **{
        function.__name__: entry(function, *LATER, **normed)
        for function in (
            tied, penalty, used_twice, norm_used_twice, functional_norm, norm_in_training, weight_scaled,
            weight_standardised, mish, weight_copied_and_written, weight_with_noise, weight_by_input,
        )
    },
    # sums
    **{
        function.__name__: entry(function, *LATER, conv=conv)
        for function in (double_residual, broadcast_residual, scaled_residual)
    },
    # modules
    **{f"patched {what}": Entry(lambda what=what: Patched(what).eval(), X, [((x,), {}) for (x,) in LATER], False)
       for what in ("forward", "_conv_forward", "root")},
    "a subclass": Entry(lambda: nn.Sequential(LoRA(4, 4, 1), nn.ReLU()).eval(), X, [((X,), {})]),
    **{f"hooked {kind}": Entry(hooked(kind), X, [((x,), {}) for (x,) in LATER], False) for kind in ("pre", "post")},
    **{how: Entry(parametrized(how), X, [((x,), {}) for (x,) in LATER]) for how in (
        "weight norm", "spectral norm", "pruned")},
    "a filter of many rows": Entry(many_rows, X, [((x,), {}) for (x,) in LATER]),
    "stride of one number": Entry(odd_attributes, X, [((X,), {})]),
    "a shared layer": Entry(shared_layer, X, [((x,), {}) for (x,) in LATER]),
    "no features": entry(empty_layers, *LATER, conv=conv, fc=lambda: nn.Linear(0, 3)),
}  # fmt: skip
