"""Entries of the zoo: a model, an example, and the calls that are made afterwards."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


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
    captured: bool = False  # whether it must be captured; otherwise it may
    asks_whether_it_is_compiled: bool = False  # and gets torch.compile's answer


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


def entry(function, *calls, example=None, captured=False, asks_whether_it_is_compiled=False, **attributes):
    """An entry of a model of a function; attributes are made anew for each model where they are callable."""

    def make():
        torch.manual_seed(3)
        return Model(function, **{name: value() for name, value in attributes.items()}).eval()

    found = [call if isinstance(call, tuple) and isinstance(call[-1], dict) else (call, {}) for call in calls]
    return Entry(make, images() if example is None else example, found, captured, asks_whether_it_is_compiled)


def one(value):
    return lambda: value


two_convs = {"conv": conv, "other": conv}


normed = {"conv": conv, "norm": batch_norm}


X, Y = images(), images(seed=7)


LAYOUTS = [(F.pad(X, (1,) * 4)[:, :, 1:-1, 1:-1],), (X.contiguous(memory_format=torch.channels_last),)]


LATER = [(X,), (images(1),), (images(3, 11, 13),), (images(5, 7, 20),), (X,)]
