"""The contender torch_compile without a GPU: what it asks of torch, and the precision that it computes in."""

import pytest
import torch
import torch.nn.functional as F

from cuconv import ConvProblem
from harness.contenders import torch_compile
from harness.contenders.base import Operands, Unavailable, load

PROBLEM = ConvProblem(2, 8, 9, 7, 12, 3, 3, 1, 0, stride_h=2, dilation_w=2, groups=4)


def precisions():
    backends = torch.backends
    places = (backends.cudnn, backends.cudnn.conv, backends.cuda.matmul)
    return [place.fp32_precision for place in places]


@pytest.fixture
def prepare(monkeypatch):
    """Prepares the call for PROBLEM with a compiler that compiles nothing.

    .seen has the options that it was given, and .calls the precisions at each call.
    """
    operands = Operands.random(PROBLEM, torch.Generator().manual_seed(1))

    def compile(function, **options):
        prepare.seen.append(options)

        def compiled(*arguments):
            prepare.calls.append(precisions())
            return function(*arguments)

        return compiled

    def prepare(precision="fp32", workspace=0):
        monkeypatch.setattr(torch_compile, "measured_workspace", lambda call: workspace)
        return torch_compile._prepare(precision, PROBLEM, operands)

    prepare.seen, prepare.calls, prepare.operands = [], [], operands
    monkeypatch.setattr(torch, "compile", compile)
    return prepare


def test_it_is_the_convolution_tuned_and_without_a_graph_of_its_own(prepare):
    prepared = prepare()
    assert prepare.seen == [{"mode": "max-autotune-no-cudagraphs", "dynamic": False}]
    assert prepared.detail == "mode=max-autotune-no-cudagraphs"
    truth = F.conv2d(prepare.operands.input, prepare.operands.weight, **PROBLEM.geometry)
    assert torch.equal(prepared.call(), truth)


@pytest.mark.parametrize(("precision", "theirs"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_the_precision_is_set_for_the_call_only(prepare, precision, theirs):
    before = precisions()
    prepare(precision).call()
    assert len(prepare.calls) == 2 and all(seen == [theirs] * 3 for seen in prepare.calls)
    assert precisions() == before


def test_its_workspace_is_measured(prepare):
    assert prepare(workspace=9).workspace_bytes == 9


def test_without_triton(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch_compile, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="need Triton, which is not installed: pip install triton"):
        load("torch_compile")
