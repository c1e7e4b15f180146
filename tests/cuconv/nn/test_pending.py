"""Converted models while kernels of their layers are being compiled."""

import pytest
import torch
from torch import nn

import cuconv.nn
from cuconv import NotReady
from cuconv.nn import dispatch, frozen, operator


class Joined(nn.Module):
    """A convolution with a shortcut, and two whose outputs are joined."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.left, self.right = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)) + x)
        return torch.cat([self.left(y), self.right(y)], 1)


def test_torch_computes_a_layer_while_its_kernels_compile(on_a_gpu, monkeypatch):
    """And asks for no other kernels, such as those for weights that are not packed."""
    model, x = Joined().eval(), torch.randn(2, 4, 8, 9)
    converted, report = cuconv.nn.convert(model, x)

    def pending(*operands, **options):
        raise NotReady("the kernels are being compiled")

    monkeypatch.setattr(frozen, "owned", lambda *arguments, **options: pending)
    converted._graphs.forget()
    monkeypatch.setattr(operator, "_launch", lambda *operands, **options: pytest.fail("other kernels are asked for"))
    allowed, torchs = [], dispatch._TORCHS
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with torch.no_grad():
        expected = model(x)
        monkeypatch.setattr(dispatch, "_TORCHS", lambda *operands: allowed.append(operands[-1]) or torchs(*operands))
        assert report.captured
        torch.testing.assert_close(converted(x), expected, rtol=1e-5, atol=1e-5)
    assert allowed == [False] * 3 and torch.backends.cudnn.allow_tf32, "no layer is rounded to TF32 meanwhile"
