"""Models that ask what has no answer in a capture, catch the error, or get another answer there than in a call."""

import contextlib

import torch
from torch.compiler import is_compiling

from tests.cuconv.nn.zoo.entries import LATER, X, conv, entry, images, one

FIVE = images(5)  # more than the example
LARGE = 99 * X.abs()


def unless_compiling(model, x):
    return model.conv(x / 255 if not torch.compiler.is_compiling() and x.max() > 5 else x)


def unless_compiling_by_name(model, x):
    return model.conv(x) * (2 if not is_compiling() and x.shape[0] > 4 else 1)


def unless_compiling_by_an_older_name(model, x):
    return model.conv(x) * (2 if not torch._dynamo.is_compiling() and x.shape[0] > 4 else 1)


def unless_exporting(model, x):
    return model.conv(x) * (2 if not torch.compiler.is_exporting() and x.shape[0] > 4 else 1)


def catches_a_question(model, x):
    try:
        if x.max() > 5:
            x = x / 255
    except RuntimeError:
        pass
    return model.conv(x)


def suppresses_a_question(model, x):
    with contextlib.suppress(Exception):
        x = x / int(x.abs().max())
    return model.conv(x)


def catches_a_missing_array(model, x):
    with contextlib.suppress(Exception):
        x = x / float(x.numpy().max())
    return model.conv(x)


def catches_a_missing_key(model, x):
    try:
        return model.conv(x) / model.table[x.shape[0]]
    except (KeyError, TypeError):
        return model.conv(x)


def catches_a_division(model, x):
    try:
        return model.conv(x) * (1 / (x.shape[2] - X.shape[2]))
    except ZeroDivisionError:
        return model.conv(x)


def catches_a_shift(model, x):
    try:
        return model.conv(x) * (1 << (x.shape[2] - X.shape[2] - 1))
    except ValueError:
        return model.conv(x)


def catches_a_missing_row(model, x):
    try:
        return model.conv(x)[:, :, 10]
    except IndexError:
        return model.conv(x)[:, :, 0]


def catches_a_large_window(model, x):
    try:
        return torch.nn.functional.max_pool2d(model.conv(x), 10)
    except RuntimeError:
        return model.conv(x)


def by_grad_mode_and_size(model, x):
    return model.conv(x) * (2 if torch.is_grad_enabled() and x.shape[0] > 4 else 1)


def by_inference_and_size(model, x):
    return model.conv(x) * (2 if torch.is_inference_mode_enabled() and x.shape[0] > 4 else 1)


def by_inference_tensor(model, x):
    return model.conv(x) * (2 if torch.is_inference(x) else 1)


def by_view(model, x):
    return model.conv(x) * (2 if x._is_view() else 1)


def by_base(model, x):
    return model.conv(x) * (1 if x._base is None else 2)


def by_version(model, x):
    return model.conv(x) * (2 if x._version else 1)


def by_storage(model, x):
    return model.conv(x) * (2 if x.untyped_storage().size() > 4 * x.numel() else 1)


def by_conjugation(model, x):
    return model.conv(x.real) * (2 if x.is_conj() else 1)


def splits_by_a_tensor(model, x):
    return model.conv(x) * torch.tensor_split(x, torch.tensor(3), 3)[0].shape[3]


def written(x):
    return x.clone().add_(1)


Z = torch.complex(X, images(seed=8))

ENTRIES = {
    **{
        function.__name__: entry(function, *LATER, (LARGE,), (FIVE[:3],), conv=conv, table=one({5: 2.0}))
        for function in (
            catches_a_question, suppresses_a_question, catches_a_missing_array,
            catches_a_missing_key, catches_a_division, catches_a_shift, catches_a_missing_row, catches_a_large_window,
            by_inference_tensor, by_view, by_base, by_storage, splits_by_a_tensor,
        )
    },
    **{
        function.__name__: entry(function, *LATER, (LARGE,), conv=conv, asks_whether_it_is_compiled=True)
        for function in (
            unless_compiling, unless_compiling_by_name, unless_compiling_by_an_older_name, unless_exporting,
        )
    },
    **{
        function.__name__: entry(function, *LATER, conv=conv)
        for function in (by_grad_mode_and_size, by_inference_and_size)
    },
    "by version": entry(by_version, (written(X),), (X,), conv=conv),
    "by conjugation": entry(by_conjugation, (Z.conj(),), (Z,), example=Z, conv=conv),
}  # fmt: skip
