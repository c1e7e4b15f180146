"""The part of torch that conv2d uses, without a GPU: signatures, streams and where memory comes from."""

from types import SimpleNamespace

import pytest
import torch

from cuconv.core.problem import UnsupportedProblem
from cuconv.runtime.arrays import TorchArrays

X = torch.zeros(2, 3, 4, 5)


def test_tensors_alike_have_the_same_signature():
    arrays = TorchArrays(torch)
    assert len({arrays.signature(X), arrays.signature(torch.ones(2, 3, 4, 5))}) == 1
    with torch.no_grad():  # a gradient counts only where it is recorded
        assert arrays.signature(X.clone().requires_grad_()) == arrays.signature(X)


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
        torch._neg_view(X),
    ],
    ids=["shape", "dtype", "transposed", "strides", "device", "gradient", "type", "negated"],
)
def test_a_signature_has_everything_that_a_tensor_may_be_refused_for(other):
    arrays = TorchArrays(torch)
    with torch.enable_grad():
        assert arrays.signature(other) != arrays.signature(X)


def test_a_forward_mode_derivative_is_part_of_the_signature_and_refused():
    arrays = TorchArrays(torch)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, X)
        assert arrays.signature(dual) != arrays.signature(X)
        on_gpu = SimpleNamespace(
            is_cuda=True, dtype=torch.float32, dim=lambda: 1, is_contiguous=lambda: True, requires_grad=False
        )
        arrays._has_tangent = lambda tensor: tensor is on_gpu
        with pytest.raises(UnsupportedProblem, match="derivative"):
            arrays.check("input", on_gpu)


@pytest.mark.parametrize("value", [X.numpy(), 0.5, None, [[1.0]]])
def test_other_kinds_of_array_have_no_signature(value):
    with pytest.raises(AttributeError):
        TorchArrays(torch).signature(value)


class FakeTorch(SimpleNamespace):
    """torch with GPUs, of which `current` is the current one; `made` has the device and strides of every tensor."""

    def __init__(self, current, missing=()):
        self.made = []
        super().__init__(
            Tensor=torch.Tensor,
            float32=torch.float32,
            float16=torch.float16,
            bfloat16=torch.bfloat16,
            device=torch.device,
            is_grad_enabled=torch.is_grad_enabled,
            autograd=torch.autograd,
            empty_strided=lambda shape, strides, dtype, device: self.made.append((shape, dtype, str(device), strides)),
            cuda=SimpleNamespace(
                current_device=lambda: current,
                current_stream=lambda device: SimpleNamespace(cuda_stream=("public", device)),
            ),
            _C=SimpleNamespace(
                _cuda_getDevice=lambda: current,
                _cuda_getCurrentRawStream=lambda device: ("private", device),
                _dynamo=SimpleNamespace(guards=SimpleNamespace(_empty_strided_cuda=self._empty_strided)),
            ),
        )
        for name in missing:
            delattr(self._C, name)

    def _empty_strided(self, shape, strides, dtype):
        self.made.append((shape, dtype, "current", strides))


def test_the_stream_is_read_by_the_fast_function_where_torch_has_it():
    assert TorchArrays(FakeTorch(1)).current_stream(1)() == ("private", 1)
    assert TorchArrays(FakeTorch(1, ["_cuda_getCurrentRawStream"])).current_stream(1)() == ("public", 1)


@pytest.mark.parametrize(
    ("current", "missing", "expected"),
    [
        (1, [], "current"),
        (0, [], "cuda:1"),
        (1, ["_dynamo"], "cuda:1"),
        (1, ["_cuda_getDevice"], "current"),
        (0, ["_cuda_getDevice"], "cuda:1"),
        (1, ["_dynamo", "_cuda_getDevice"], "cuda:1"),
    ],
)
def test_a_new_tensor_is_on_the_gpu_asked_for_whatever_torch_lacks(current, missing, expected):
    fake = FakeTorch(current, missing)
    TorchArrays(fake).allocator((2, 3, 4, 5), 1)()
    assert fake.made == [((2, 3, 4, 5), torch.float32, expected, X.stride())]


@pytest.mark.parametrize(
    ("element", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_a_new_tensor_in_channels_last(element, dtype):
    fake = FakeTorch(1)
    TorchArrays(fake).allocator((2, 3, 4, 5), 1, element, channels_last=True)()
    like = torch.empty(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
    assert fake.made == [((2, 3, 4, 5), dtype, "current", like.stride())]
