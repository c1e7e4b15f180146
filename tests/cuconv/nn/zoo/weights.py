"""Models that use weights in several ways, with sums, and with modules that are changed or of other classes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.cuconv.nn.zoo.entries import LATER, Entry, X, batch_norm, conv, entry, normed


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
    """A filter of many more rows than the image has."""
    return nn.Sequential(nn.Conv2d(4, 3, (40, 3), (2, 1), (20, 1)), nn.ReLU()).eval()


def shared_layer():
    torch.manual_seed(3)
    layer = conv()
    return nn.Sequential(layer, nn.ReLU(), layer, batch_norm(), layer).eval()


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


ENTRIES = {
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
