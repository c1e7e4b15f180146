"""cuconv.nn.enabled on a CPU: every convolution of a block, whoever calls it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from tests.cuconv.nn.models import close, made, operands


def test_enabled_sends_every_convolution(on_a_gpu):
    model, x = made("block")
    with torch.no_grad(), cuconv.nn.enabled(precision="tf32"):
        ours = model(x)
    with torch.no_grad():
        assert close(ours, model(x))
    assert on_a_gpu == [{"kind": "plain", "relu": False, "residual": False, "precision": "tf32"}] * 3


def test_enabled_keeps_gradients_and_what_cuconv_does_not_take(on_a_gpu):
    conv, transposed = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 3)
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    with cuconv.nn.enabled():
        transposed(conv(x)).sum().backward()
        conv.double()(x.detach().double())
    assert len(on_a_gpu) == 1 and x.grad is not None and conv.weight.grad is not None


class Layers(nn.Sequential):
    """Convolutions that reach torch in three ways."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(4, 4, 1),
            nn.Conv2d(4, 4, 3, padding="same"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        )


@pytest.mark.parametrize("recording", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("form", ["eager", "trace", "script"])
def test_whoever_calls_a_convolution(on_a_gpu, recording, form):
    model, x = Layers().eval(), torch.randn(2, 4, 6, 7)
    called = {"eager": model, "trace": torch.jit.trace(model, x), "script": torch.jit.script(model)}[form]
    with recording(), cuconv.nn.enabled():
        ours = called(x)
    assert close(ours, model(x)) and len(on_a_gpu) == 3


def test_blocks_in_blocks(on_a_gpu):
    x, weight, _ = operands()
    with cuconv.nn.enabled("tf32"):
        with cuconv.nn.enabled():
            F.conv2d(x, weight)
        F.conv2d(x, weight)
    F.conv2d(x, weight)
    assert [call["precision"] for call in on_a_gpu] == ["fp32", "tf32"]


def test_a_convolution_that_torch_refuses_is_refused(on_a_gpu):
    x, weight, _ = operands()
    with cuconv.nn.enabled(), pytest.raises(RuntimeError):
        F.conv2d(x[:, :5], weight)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match=r"precision='half': must be one of fp32, tf32"), cuconv.nn.enabled("half"):
        pass
