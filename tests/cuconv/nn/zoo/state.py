"""Models with state, random numbers or modes of torch."""

import random
from collections import deque
from types import SimpleNamespace

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from tests.cuconv.nn.zoo.entries import LATER, Model, conv, entry, one, two_convs


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


def adds_noise(model, x):
    return model.conv(x) + torch.rand_like(x)


def puts_random_numbers_back(model, x):
    state = torch.get_rng_state()
    noise = torch.rand(())
    torch.set_rng_state(state)
    return model.conv(x) + noise


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


def by_inference_mode(model, x):
    return model.conv(x) * (2 if torch.is_inference_mode_enabled() else 1)


def calls_a_hidden_module(model, x):
    return model.conv(model.hidden[0](x))


def doubles_later(model, x):
    model.calls += 1
    return x if model.calls < 6 else x * 2


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


def random_branch(model, x):
    return model.conv(x.flip(-1) if random.random() < 0.5 else x)


def numpy_branch(model, x):
    return model.conv(x.flip(-1) if numpy.random.random() < 0.5 else x)


def hooks_inside(model, x):
    handle = model.conv.register_forward_hook(lambda module, arguments, output: output * 2)
    try:
        return model.conv(x)
    finally:
        handle.remove()


def counts_in_an_object(model, x):
    model.state.calls += 1
    model.state.seen.append(tuple(x.shape))
    return model.conv(x) * (2 if model.state.calls > 6 else 1)


def sets_flags(model, x):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        return model.conv(x)


ENTRIES = {
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
    "a hidden module that counts": entry(
        calls_a_hidden_module, *LATER, *LATER, captured=False, conv=conv, hidden=lambda: [Model(doubles_later, calls=0)]
    ),
    "moving average": entry(
        moving_average, *LATER, captured=False, conv=conv, mean=lambda: nn.Buffer(torch.zeros(()))
    ),
    # random numbers and modes
    **{
        function.__name__: entry(function, *LATER, **two_convs)
        for function in (
            sets_flags, by_inference_mode, adds_noise, puts_random_numbers_back, python_noise, random_branch,
            numpy_branch, hooks_inside, drops, by_grad_mode, no_grad_inside, autocast_inside, autocast_off_inside,
        )
    },
    **{
        function.__name__: entry(function, *LATER, captured=False, **two_convs)
        for function in (maps_images, maps_to_the_same, derives)
    },
}  # fmt: skip
