"""The faces of torch and CuPy that need no GPU: signatures, and where memory comes from."""

from types import SimpleNamespace

import pytest
import torch

from cuconv.arrays import TorchArrays

X = torch.zeros(2, 3, 4, 5)


def test_tensors_alike_have_the_same_signature():
    arrays = TorchArrays(torch)
    assert arrays.signature(X) == arrays.signature(torch.ones(2, 3, 4, 5))
    assert hash(arrays.signature(X)) == hash(arrays.signature(torch.ones(2, 3, 4, 5)))


@pytest.mark.parametrize(
    "other",
    [
        X[:1],
        X.double(),
        X.transpose(2, 3),
        X.to(memory_format=torch.channels_last),
        X.to("meta"),
        X.clone().requires_grad_(),
        torch.nn.Parameter(X, requires_grad=False),
    ],
    ids=["shape", "dtype", "transposed", "strides", "device", "gradient", "type"],
)
def test_a_signature_has_all_that_a_tensor_may_be_refused_for(other):
    arrays = TorchArrays(torch)
    with torch.enable_grad():
        assert arrays.signature(other) != arrays.signature(X)


def test_a_gradient_counts_only_where_it_is_recorded():
    arrays = TorchArrays(torch)
    with torch.no_grad():
        assert arrays.signature(X.clone().requires_grad_()) == arrays.signature(X)


@pytest.mark.parametrize("value", [X.numpy(), 0.5, None, [[1.0]]])
def test_other_kinds_of_array_have_none(value):
    with pytest.raises(AttributeError):
        TorchArrays(torch).signature(value)


@pytest.mark.parametrize(("current", "expected"), [(1, "fast"), (0, "cuda:1")])
def test_memory_is_of_the_device_asked_for_whichever_is_current(current, expected):
    made = []
    fake = SimpleNamespace(
        Tensor=torch.Tensor,
        float32=torch.float32,
        device=torch.device,
        is_grad_enabled=torch.is_grad_enabled,
        empty=lambda shape, dtype, device: made.append((shape, dtype, str(device))),
        _C=SimpleNamespace(
            _cuda_getDevice=lambda: current,
            _dynamo=SimpleNamespace(
                guards=SimpleNamespace(
                    _empty_strided_cuda=lambda shape, strides, dtype: made.append((shape, dtype, "fast", strides))
                )
            ),
        ),
    )
    TorchArrays(fake).allocator((2, 3, 4, 5), 1)()
    ((shape, dtype, where, *strides),) = made
    assert (shape, dtype, where) == ((2, 3, 4, 5), torch.float32, expected)
    assert strides in ([], [X.stride()])
