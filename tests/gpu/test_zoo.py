"""The zoo of models that are easily converted wrongly, on a GPU: converted models return what the models return."""

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

import cuconv.nn
from tests.cuconv.nn.test_zoo import assert_same, results
from tests.cuconv.nn.zoo import ZOO


def on_gpu(value):
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.cuda, value)


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch):
    """Keep torch's own convolutions in FP32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recording", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", ZOO)
def test_a_converted_model_of_the_zoo_is_the_model(name, recording):
    entry = ZOO[name]
    model = entry.make().cuda()
    state = copy.deepcopy(model.state_dict())
    converted, report = cuconv.nn.convert(model, on_gpu(entry.example))
    assert entry.captured is None or report.captured == entry.captured, report.why_not_captured
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items()), "the model is unchanged"
    calls = on_gpu(entry.calls)
    assert_same(results(converted, calls, recording), results(model, calls, recording))
