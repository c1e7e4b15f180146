"""Models that write to tensors, and to views of them."""

import torch
import torch.nn.functional as F

from tests.cuconv.nn.zoo.entries import LATER, X, batch_norm, conv, entry, two_convs


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


ENTRIES = {
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
}  # fmt: skip
