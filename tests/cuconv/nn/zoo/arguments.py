"""Models whose code depends on their arguments: types, sizes, layouts, values; and what they return."""

import math
from collections import namedtuple
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from tests.cuconv.nn.zoo.entries import (
    LATER,
    LAYOUTS,
    X,
    Y,
    conv,
    entry,
    images,
    one,
    two_convs,
)


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


def linear_of_parameters(model, x):
    return F.linear(x, model.weight, model.bias)


def parameter(*shape):
    return lambda: nn.Parameter(torch.randn(shape))


def dataclass_like(model, x):
    return Pair(model.conv(x), x)


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


def by_columns(model, x):
    return model.conv(x) * F.max_pool2d(x, 1, 2, ceil_mode=True).shape[3]


def pools_unless_square(model, x):
    y = F.avg_pool2d(model.conv(x), 2, 3, ceil_mode=True)
    return y if y.shape[2] == y.shape[3] else F.adaptive_avg_pool2d(y, y.shape[2])


def splits_in_three(model, x):
    return model.conv(x) * torch.tensor_split(x, 3, 3)[0].shape[3]


def by_text(model, x):
    return model.conv(x) * {"11x13": 3}.get(f"{x.shape[2]}x{x.shape[3]}", 1)


def by_text_of_a_half(model, x):
    return model.conv(x) * {"6.5": 3}.get(f"{x.shape[3] / 2}", 1)


def by_contiguity(model, x):
    return model.conv(x) * (2 if x.transpose(0, 1).is_contiguous() else 1)


def by_channels_last(model, x):
    rows = model.conv(x).transpose(2, 3).contiguous(memory_format=torch.channels_last).mT
    return rows * (2 if rows.is_contiguous(memory_format=torch.channels_last) else 1)


def components(model, x):
    return torch.pca_lowrank(model.conv(x).flatten(1), q=2)[1]


def by_offset(model, x):
    return model.conv(x.as_strided(x.shape, x.stride(), x.storage_offset()))


def by_attribute(model, x):
    return model.conv(x) * getattr(x, "scale", 1)


def by_parameter(model, x):
    return model.conv(x) * (2 if isinstance(x, nn.Parameter) else 1)


def with_attribute(tensor, **attributes):
    tensor = tensor.clone()
    tensor.__dict__.update(attributes)
    return tensor


def returns_a_size(model, x):
    return model.conv(x), x.shape


@lru_cache
def grid(h, w, device):
    return torch.arange(h * w, device=device).float().view(h, w)


def adds_a_grid(model, x):
    return model.conv(x) + grid(*x.shape[2:], x.device)


def by_sign(model, x, scale):
    return model.conv(x) * math.copysign(1, scale)


Z = torch.complex(X, images(seed=8))


ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(6))


ODD = [(images(2, h, w),) for h, w in ((8, 10), (9, 9), (8, 7), (11, 8), (1, 5), (8, 1), (1, 1))]


ENTRIES = {
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
            returns_a_size, by_text, by_text_of_a_half, by_contiguity, components,
        )
    },
    **{
        function.__name__: entry(function, *LATER, *ODD, captured=True, conv=conv)
        for function in (by_columns, pools_unless_square, by_channels_last, splits_in_three)
    },
    "by offset": entry(by_offset, (images(6)[2:4],), (images(6)[4:],), (X,), conv=conv),
    "by parameter": entry(by_parameter, (nn.Parameter(X, requires_grad=False),), (X,), captured=True, conv=conv),
    "by attribute": entry(by_attribute, (with_attribute(X, scale=3),), (X,), captured=True, conv=conv),
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
        function.__name__: entry(function, *LATER, (-X.abs(),), conv=conv, fc=lambda: nn.Linear(4, 3))
        for function in (images_of_a_mask, pixels_of_a_mask)
    },
    # fully connected layers
    **{
        f"a weight {weight} and a bias {bias}": entry(
            linear_of_parameters, (ROWS,), (ROWS[:2],), example=ROWS, captured=weight == (5, 4) and bias == (5,),
            weight=parameter(*weight), bias=one(None) if bias is None else parameter(*bias),
        )
        for weight, bias in (((4,), None), ((5, 4), ()), ((5, 4), (1,)), ((5, 4), (1, 5)), ((5, 4), (5,)))
    },
}  # fmt: skip
