"""cuconv.nn.enabled on a CPU: every convolution of a block, whoever calls it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

import cuconv.nn
from cuconv.call import NotReady
from cuconv.nn import dispatch, operator
from tests.cuconv.nn.models import close, made, operands


def test_enabled_sends_every_convolution(on_a_gpu):
    model, x = made("block")
    with torch.no_grad(), cuconv.nn.enabled(precision="tf32"):
        ours = model(x)
    with torch.no_grad():
        assert close(ours, model(x))
    assert on_a_gpu == [{"kind": "plain", "activation": "none", "residual": False, "precision": "tf32"}] * 3


def test_enabled_keeps_gradients_and_what_cuconv_does_not_take(on_a_gpu):
    conv, transposed = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 2, stride=3)
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


@pytest.mark.parametrize("form", ["eager", "trace", "script"])
def test_gradients_are_torchs_whoever_calls_a_convolution(on_a_gpu, form):
    model, x = Layers().eval(), torch.randn(2, 4, 6, 7, requires_grad=True)
    called = {"eager": model, "trace": torch.jit.trace(model, x), "script": torch.jit.script(model)}[form]
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    with cuconv.nn.enabled():
        (ours,) = torch.autograd.grad(called(x).square().sum(), x)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(called(forward_ad.make_dual(x, x))).tangent
    assert close(ours, expected) and len(on_a_gpu) > 3
    assert close(tangent, torch.func.jvp(model, (x,), (x,))[1])


def test_a_traced_model_in_autocast_computes_in_its_type(on_a_gpu):
    model, x = nn.Conv2d(4, 4, 3).eval(), torch.randn(2, 4, 6, 7)
    traced = torch.jit.trace(model, x)
    with torch.no_grad(), cuconv.nn.enabled(), torch.autocast("cpu", torch.bfloat16):
        assert traced(x).dtype == model(x).dtype == torch.bfloat16
    assert on_a_gpu == []


def test_compiled_code_of_a_block(on_a_gpu):
    model, x = Layers().eval(), torch.randn(2, 4, 6, 7)
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        expected = model(x)
        with cuconv.nn.enabled():
            assert close(compiled(x), expected) and close(compiled(x), expected)
            assert on_a_gpu, "what is compiled calls torch's convolution"
        on_a_gpu.clear()
        assert close(compiled(x), expected) and on_a_gpu == []


def test_a_block_is_of_its_thread(on_a_gpu):
    x, weight, _ = operands()
    with ThreadPoolExecutor(max_workers=1) as thread, cuconv.nn.enabled():
        thread.submit(F.conv2d, x, weight).result()
    assert on_a_gpu == []


def test_an_error_ends_a_block(on_a_gpu):
    x, weight, _ = operands()
    with pytest.raises(ArithmeticError), cuconv.nn.enabled("tf32"):
        raise ArithmeticError
    F.conv2d(x, weight)
    with cuconv.nn.enabled():
        F.conv2d(x, weight)
    assert [call["precision"] for call in on_a_gpu] == ["fp32"]


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True)])
def test_torch_rounds_to_tf32_only_if_asked_while_kernels_compile(on_a_gpu, monkeypatch, precision, allowed):
    def pending(*operands, **options):
        raise NotReady("the kernels are being compiled")

    seen, torchs = [], dispatch._TORCHS
    monkeypatch.setattr(dispatch, "_TORCHS", lambda *operands: seen.append(operands[-1]) or torchs(*operands))
    monkeypatch.setattr(operator, "_launch", pending)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    x, weight, _ = operands()
    with cuconv.nn.enabled(precision):
        ours = F.conv2d(x, weight)
    assert close(ours, F.conv2d(x, weight)) and seen == [allowed]


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
