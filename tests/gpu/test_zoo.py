"""The zoo of models that are easily converted wrongly, on a GPU: they return what the models return."""

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.cuconv.nn.test_backend import check_compiled
from tests.cuconv.nn.test_zoo import check
from tests.cuconv.nn.zoo import ZOO


def on_gpu(value):
    if isinstance(value, torch.nn.Module):
        return value.cuda()
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.cuda, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_a_converted_model_of_the_zoo_is_the_model(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    check(ZOO[name], on_gpu)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_a_compiled_model_of_the_zoo_is_what_torch_compile_makes_of_it(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    check_compiled(ZOO[name], on_gpu)
