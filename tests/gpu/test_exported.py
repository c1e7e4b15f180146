"""Exported programs with cuConv's operator on a GPU, and packages that AOTInductor makes of them."""

import pytest
import torch

import cuconv.nn
from tests.cuconv.nn.models import close, made


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch):
    """Keep torch's own convolutions in FP32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def exported():
    """A model, images, and the folded program for any number of them."""
    model, x = made("block")
    model, x = model.cuda(), x.cuda()
    free = {0: torch.export.Dim.AUTO}
    return model, x, cuconv.nn.fold(torch.export.export(model, (x,), dynamic_shapes=(free,)))


def test_a_program_runs_cuconv_s_operator():
    model, x, program = exported()
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.cuconv.conv2d.default) == 3 and torch.ops.aten.batch_norm.default not in targets
    for images in (x, torch.cat([x, -x, x])):
        assert close(program.module()(images), model.double()(images.double()))
        model.float()
