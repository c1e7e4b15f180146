"""Fixtures: `on_a_gpu`, cuconv.nn on CPU tensors, where float64 computes what would be launched, and others."""

import ctypes
from math import prod

import pytest
import torch
import torch._dynamo.guards
import torch.nn.functional as F

from cuconv import UnsupportedProblem, reference
from cuconv.core.activation import NONE
from cuconv.device import H200
from cuconv.nn import frozen, fusions, limits, operator, planes, pooling
from cuconv.nn.activated import activated
from cuconv.nn.formats import TYPES, is_laid_out, laid_out, precision_of


@pytest.fixture(autouse=True, scope="package")
def torch_does_no_more_than_is_needed():
    """Seed no random numbers of devices that are not there, for later, with a stack as text; time no guards."""
    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        patch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
        yield


@pytest.fixture
def nothing_compiled():
    """Begin and end each test without compiled code, which torch keeps for functions, not for models."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def launch(input, weight, bias, stride, padding, dilation, groups, *, activation, residual, out=None):
    """What cuconv.conv2d computes, and what it refuses."""
    operands = [tensor for tensor in (input, weight, bias, residual) if tensor is not None]
    if any(one.dtype not in TYPES or not is_laid_out(one) or not one.numel() for one in operands):
        raise UnsupportedProblem("another type or layout")
    result = reference.conv2d(
        input.reshape(-1, *input.shape[-3:]), weight, padding, bias, stride=stride, dilation=dilation, groups=groups
    ).reshape(*input.shape[:-3], -1, *_plane(input, weight, stride, padding, dilation))
    if residual is not None and residual.shape != result.shape:
        raise UnsupportedProblem("a residual of another shape")
    result = result if residual is None else result + residual.double()
    result = laid_out(activated(result, activation).to(input.dtype))
    return result if out is None else out.copy_(result)


def _plane(input, weight, stride, padding, dilation):
    return operator.output_shape(input[None] if input.dim() == 3 else input, weight, stride, padding, dilation)[2:]


def of_planes(key, plan, input, weight, bias):
    """The output of a kernel of planes in float64; the kernel gets the addresses of its weights."""

    def numbers(address, dtype, *shape):
        memory = (ctypes.c_char * (prod(shape) * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).view(shape).double()

    channels, x = input.shape[1], input.double()
    assert plan.output_shape == tuple(input.shape)
    if key[0] == "group_norm":
        _, groups, epsilon, activation = key
        of_channels = (numbers(one, input.dtype, channels) if one else None for one in (weight, bias))
        return activated(torch.nn.functional.group_norm(x, groups, *of_channels, epsilon), activation)
    _, hidden, first, second = key
    squeezing, exciting = numbers(weight, torch.float32, 2, channels, hidden)
    shifts = numbers(bias, torch.float32, hidden + channels)
    values = activated(x.mean((2, 3)) @ squeezing + shifts[:hidden], first)
    gates = activated(values @ exciting.T + shifts[hidden:], second)
    return x * gates[:, :, None, None]


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Take CPU tensors for a GPU's; returns the options of each call that cuConv computes, in order."""
    calls = []

    def note(kind, activation, residual, precision, **others):
        calls.append(
            {
                "kind": kind,
                "activation": str(activation),
                "residual": residual is not None,
                "precision": precision,
                **others,
            }
        )

    def conv2d(input, weight, bias, *geometry, activation=NONE, residual=None, precision="fp32"):
        output = launch(input, weight, bias, *geometry, activation=activation, residual=residual)
        note("plain", activation, residual, precision_of(input, precision))
        return output

    def owned(weight, bias, *geometry, activation, precision):
        def call(input, residual=None, *, out=None):
            output = launch(input, weight, bias, *geometry, activation=activation, residual=residual, out=out)
            note("prepared", activation, residual, precision, out=out is not None)
            return output

        call.packed_bytes = 2**20
        return call

    def qualifies(input, weight, bias):
        return input.dtype in TYPES and is_laid_out(input) and is_laid_out(weight) and input.numel() > 0

    def pooled(input, *options):
        if not is_laid_out(input):
            raise UnsupportedProblem("another layout")
        return laid_out(F.max_pool2d(input.double(), *options).to(input.dtype))

    def called(key, planned, input, weight=0, bias=0):
        plan = planned(H200)
        output = of_planes(key, plan, input, weight, bias)
        note(key[0], key[-1], None, plan.precision)
        assert plan.is_channels_last == (plan.precision != "fp32")
        return laid_out(output.to(input.dtype))

    monkeypatch.setattr(planes, "called", called)
    monkeypatch.setattr(operator, "_launch", conv2d)
    monkeypatch.setattr(operator, "qualifies", qualifies)
    for module in (fusions, limits, planes, pooling):
        monkeypatch.setattr(module, "is_supported", lambda input: True)
    monkeypatch.setattr(pooling, "pooled", pooled)
    monkeypatch.setattr(limits, "spec_of", lambda tensor: H200)
    monkeypatch.setattr(frozen, "owned", owned)
    monkeypatch.setattr(frozen, "is_on_gpu", lambda input: True)
    return calls
