"""Each model of the zoo, converted, returns what it returned before: in every later call, in order, in every mode."""

import copy
import random
from functools import partial

import numpy
import pytest
import torch
from torch.utils import _pytree as pytree

import cuconv.nn
from cuconv.nn.comparison import distance
from tests.cuconv.nn.zoo import ZOO


def results(model, calls, recording):
    """The outputs of calls in order, or the kind of exception of those that raise."""
    found = []
    torch.manual_seed(11)
    random.seed(11)
    numpy.random.seed(11)
    for call in calls:
        arguments, keywords = copy.deepcopy(call)
        with recording():
            try:
                found.append(model(*arguments, **keywords))
            except Exception as error:
                found.append(type(error))
    return found


def assert_same(ours, theirs):
    """Check that the results of calls agree: structure, types, and numbers up to rounding."""
    for our, their in zip(ours, theirs, strict=True):
        our_leaves, our_spec = pytree.tree_flatten(our)
        their_leaves, their_spec = pytree.tree_flatten(their)
        assert our_spec == their_spec
        for one, other in zip(our_leaves, their_leaves, strict=True):
            assert type(one) is type(other)
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, check_stride=False)
            else:
                assert one == (pytest.approx(other, rel=1e-4) if isinstance(other, float) else other)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_a_converted_model_of_the_zoo_is_the_model(on_a_gpu, name):
    check(ZOO[name], lambda value: value)


def check(entry, moved):
    """Convert the model of an entry, and compare both models in later calls, with and without gradients.

    moved: puts a model or tensors where they are to be computed.
    """

    def made():
        torch.manual_seed(3)
        return moved(entry.make())

    calls, model = moved(entry.calls), made()
    state = copy.deepcopy(model.state_dict())
    first, report = cuconv.nn.convert(model, moved(entry.example))
    assert report.captured or not entry.captured, report.why_not_captured
    for key, value in model.state_dict().items():
        assert torch.equal(value.to_dense(), state[key].to_dense())
    for recording in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        ours = results(copy.deepcopy(first), calls, recording)  # calls may change the model
        theirs = results(made(), calls, recording)
        if entry.asks_whether_it_is_compiled:  # a call that runs in a graph gets the answer of torch.compile
            torch._dynamo.reset()
            compiled = results(torch.compile(made(), backend="eager", dynamic=True), calls, recording)
            theirs = [min(both, key=partial(distance, our)) for our, *both in zip(ours, theirs, compiled, strict=True)]
        assert_same(ours, theirs)
