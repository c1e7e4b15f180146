"""cuconv.nn.Conv2d and Linear compared with torch's, on a CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from tests.cuconv.nn.models import close


@pytest.mark.parametrize("change", ["half", "channels_last", "empty", "one image", "autocast"])
def test_a_module_takes_what_torchs_takes(on_a_gpu, change):
    conv = nn.Conv2d(4, 6, 3, padding=1)
    layer, x = cuconv.nn.Conv2d(4, 6, 3, padding=1), torch.randn(2, 4, 5, 7)
    layer.load_state_dict(conv.state_dict())
    if change == "half":
        conv, layer, x = conv.bfloat16(), layer.bfloat16(), x.bfloat16()
    x = {"channels_last": x.to(memory_format=torch.channels_last), "empty": x[:0], "one image": x[0]}.get(change, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        torch.testing.assert_close(layer(x), conv(x), check_stride=False)


def test_a_module_reads_its_weights_at_each_call(on_a_gpu):
    layer, x = cuconv.nn.Conv2d(4, 4, 1), torch.randn(1, 4, 5, 5)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        layer.weight = nn.Parameter(torch.randn(4, 4, 1, 1))
        assert close(layer(x), F.conv2d(x.double(), layer.weight.double(), layer.bias.double()))


def test_a_traced_module_computes_and_is_no_constant(on_a_gpu):
    layer = cuconv.nn.Conv2d(4, 4, 1)
    first, second = torch.randn(1, 4, 5, 5), torch.randn(1, 4, 5, 5)
    with torch.no_grad():
        traced = torch.jit.trace(layer, first)
        assert close(traced(second), layer(second))
        mapped = torch.vmap(layer)(torch.stack([first, second]))
        assert close(mapped[1], layer(second))


@pytest.mark.parametrize(("rows", "kinds"), [((), 1), ((1,), 1), ((2, 3, 4), 1), ((32,), 1), ((33,), 0), ((0,), 0)])
def test_fully_connected_layers_of_few_rows(on_a_gpu, rows, kinds):
    layer, x = cuconv.nn.Linear(7, 5), torch.randn(*rows, 7)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    assert [call["kind"] for call in on_a_gpu] == ["plain"] * kinds
    layer(x).sum().backward()
    assert layer.weight.grad is not None
