"""Calls that make no sense: whatever the argument, the error is one of ours and says so in a sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, conv, conv1d, conv2d, plan, precompile
from cuconv.core.geometry import Geometry
from cuconv.device import H200
from cuconv.operands import check_operands
from cuconv.runtime.arrays import library_of

PACKAGE = Path(conv.__file__).parent
X, W = torch.ones(2, 4, 5, 5), torch.ones(6, 4, 3, 3)


class Subclass(torch.Tensor):
    """A subclass of torch.Tensor that does nothing."""


ODD = {
    "float": 1.5,
    "nan": float("nan"),
    "bool": True,
    "text": "3",
    "none": None,
    "object": object(),
    "list": [3],
    "nested list": [[3]],
    "three": (1, 2, 3),
    "empty": (),
    "dict": {},
    "huge": 10**5000,
    "negative": -1,
    "big": 2**40,
    "int32": np.int32(2),
    "float32": np.float32(2),
    "numpy": np.ones(3),
    "numpy rank 4": np.ones((2, 4, 5, 5), np.float32),
    "tensor": torch.ones(3),
    "tensor rank 4": X,
    "scalar": torch.tensor(2),
    "rank 5": X[None],
    "half": X.half(),
    "complex": X.to(torch.complex64),
    "strided": X.transpose(2, 3),
    "sparse": X.to_sparse(),
    "meta": X.to("meta"),
    "subclass": X.as_subclass(Subclass),
    "negative view": torch._neg_view(X),
    "type": int,
}
odd = pytest.mark.parametrize("value", ODD.values(), ids=ODD)
CALLS = {
    **{
        f"conv2d {name}": lambda value, name=name: conv2d(**({"input": X, "weight": W} | {name: value}))
        for name in (
            *("input", "weight", "bias", "stride", "padding", "dilation", "groups", "relu", "residual", "algorithm"),
            *("activation", "precision", "out"),
        )
    },
    **{
        f"conv1d {name}": lambda value, name=name: conv1d(**({"input": X[0], "weight": W[0]} | {name: value}))
        for name in ("input", "weight", "bias", "stride", "padding", "dilation", "groups", "residual", "out")
    },
    **{
        f"geometry {name}": lambda value, name=name: Geometry(**{name: value}).problem(X.shape, W.shape, "fp32")
        for name in ("stride", "padding", "dilation", "groups")
    },
    "geometry shape": lambda value: Geometry().problem(value, W.shape, "fp32"),
    "geometry precision": lambda value: Geometry().problem(X.shape, W.shape, value),
    "plan problem": lambda value: plan(value, H200),
    "plan algorithm": lambda value: plan(ConvProblem(1, 2, 3, 3, 2, 3, 3), H200, value),
    "precompile": lambda value: precompile(value, H200),
}


@odd
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_error_is_one_of_ours(call, value):
    try:
        call(value)
    except (TypeError, ValueError, ImportError) as error:
        trace = error.__traceback__
        while trace.tb_next:
            trace = trace.tb_next
        assert PACKAGE in Path(trace.tb_frame.f_code.co_filename).parents, "raised by another library"
        assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("value", "error", "why"),
    [
        (X.as_subclass(Subclass), TypeError, "subclasses"),
        (X.to_sparse(), UnsupportedProblem, "sparse"),
        (torch._neg_view(X), UnsupportedProblem, "negates"),
        (torch.nested.nested_tensor([X]), UnsupportedProblem, "nested"),
        (X.to("meta"), UnsupportedProblem, "meta"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_are_no_plain_memory_are_refused(value, error, why):
    with pytest.raises(error, match=why):
        conv2d(value, W)


def test_a_tensor_whose_storage_was_freed_is_refused():
    freed = X.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedProblem, match="memory"):
        check_operands(library_of(freed), {"input": freed})


def test_a_parameter_is_a_tensor():
    library_of(X).check_plain("weight", torch.nn.Parameter(W))
