"""A converted model that is changed afterwards computes what it has become, as the model itself does."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode

import cuconv.nn
from tests.cuconv.nn.zoo.entries import Model, batch_norm, conv, images

X = images()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.doubles = conv(), batch_norm(), False
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("shift", torch.ones(()))

    def forward(self, x):
        y = self.norm(self.conv(x)) * self.scale + self.shift
        return y * 2 if self.doubles else y


class Adapted(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x) + x


class Refined(Block):
    def forward(self, x):
        return super().forward(x) - 1


class Root(nn.Sequential):
    triple = False

    def forward(self, x):
        return super().forward(x) * (3 if self.triple else 1)


def made():
    torch.manual_seed(3)
    return Root(nn.Sequential(Block(), nn.ReLU()), Block()).requires_grad_(False).eval()


def constant(value, *shape):
    return nn.Parameter(torch.full(shape, value), requires_grad=False)


def twice(tensors):
    return {name: tensor * 2 for name, tensor in tensors.items()}


def patched(module):
    forward = module.forward
    module.forward = lambda x: forward(x) * 2


def trained_for_a_call(model):
    model.train()
    model(X)
    model.eval()


def doubled(module, inputs, output):
    return output * 2


CHANGES = {
    "attribute of the model": lambda model: setattr(model, "triple", True),
    "attribute": lambda model: setattr(model[0][0], "doubles", True),
    "eps": lambda model: setattr(model[1].norm, "eps", 1.0),
    "stride": lambda model: setattr(model[1].conv, "stride", (2, 2)),
    "weight": lambda model: setattr(model[1].conv, "weight", constant(0.5, 4, 4, 1, 1)),
    "weight of another shape": lambda model: setattr(model[1].conv, "weight", constant(0.5, 4, 4, 3, 3)),
    "no bias": lambda model: setattr(model[1].conv, "bias", None),
    "parameter": lambda model: setattr(model[1], "scale", constant(3.0, 4, 1, 1)),
    "buffer": lambda model: setattr(model[1], "shift", torch.zeros(())),
    "statistics": lambda model: setattr(model[1].norm, "running_mean", torch.ones(4)),
    "layer": lambda model: setattr(model[1], "conv", conv(bias=False)),
    "item": lambda model: model[0].__setitem__(1, nn.Identity()),
    "appended": lambda model: model.append(nn.Sigmoid()),
    "deleted": lambda model: delattr(model[1], "scale"),
    "registered": lambda model: model[1].register_module("conv", nn.Identity()),
    "written by torch's own tools": lambda model: model[1]._modules.__setitem__("conv", nn.Identity()),
    "adapter": lambda model: setattr(model[1], "conv", Adapted(model[1].conv)),
    "class": lambda model: setattr(model[1], "__class__", Refined),
    "hook": lambda model: model[1].norm.register_forward_hook(doubled),
    "hook of the model": lambda model: model.register_forward_hook(doubled),
    "hook before": lambda model: model[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,)),
    "method": lambda model: patched(model[1]),
    "weight norm": lambda model: (parametrizations.weight_norm(model[1].conv), model.requires_grad_(False)),
    "pruned": lambda model: prune.l1_unstructured(model[1].norm, "weight", 0.5),
    "state of a part": lambda model: model[1].load_state_dict(twice(model[1].state_dict())),
    "assigned state": lambda model: model.load_state_dict(twice(model.state_dict()), assign=True),
    "state of a whole": lambda model: nn.ModuleList([model]).load_state_dict(
        twice(nn.ModuleList([model]).state_dict())
    ),
    "type of a part": lambda model: model[1].double(),
    "training for a call": trained_for_a_call,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_module_is_followed(on_a_gpu, change):
    model = made()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured
    results = []
    for one in (model, converted):
        torch.manual_seed(4)
        with torch.no_grad():
            one(X)
            CHANGES[change](one)
            try:
                results.append(one(X))
            except (AttributeError, RuntimeError) as error:
                results.append(type(error))
    if isinstance(results[0], type):
        assert results[1] is results[0]
    else:
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


USES = {
    "functional_call": lambda model: torch.func.functional_call(model, twice(model.state_dict()), (X,)),
    "a slice": lambda model: model[:1](X),
    "a copy of a part": lambda model: copy.deepcopy(model[1].norm)(X),
    "a pickled part": lambda model: pickle.loads(pickle.dumps(model[1]))(X),
    "fx": lambda model: torch.fx.symbolic_trace(model)(X * 2),
    "a global hook": lambda model: with_a_global_hook(model),
    "a changed copy": lambda model: changed_copy(copy.deepcopy(model)),
    "a changed pickle": lambda model: changed_copy(pickle.loads(pickle.dumps(model))),
}


def changed_copy(model):
    before = model(X)
    model[1].doubles = True
    return before, model(X)


def with_a_global_hook(model):
    with nn.modules.module.register_module_forward_hook(doubled):
        return model(X)


@pytest.mark.parametrize("use", USES)
def test_a_model_is_used_as_before(on_a_gpu, use):
    model = made()
    converted, _ = cuconv.nn.convert(model, X)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(USES[use](converted), USES[use](model), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
    assert converted._graphs is not None, "calls with the model's own weights are captured again"


def test_gradients_of_weights_that_are_passed_in(on_a_gpu):
    model = made()
    weights = {name: tensor.clone().requires_grad_() for name, tensor in model.named_parameters()}
    gradients = []
    for one in (model, cuconv.nn.convert(model, X)[0]):
        loss = torch.func.functional_call(one, weights, (X,)).square().sum()
        gradients.append(torch.autograd.grad(loss, list(weights.values())))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_a_parameter_that_is_made_to_require_a_gradient_gets_one(on_a_gpu):
    model = made()
    gradients = []
    for one in (cuconv.nn.convert(model, X)[0], model):
        weight = one[0][0].conv.weight.requires_grad_()
        gradients.append(torch.autograd.grad(one(X).square().sum(), weight))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv()

    def forward(self, x):
        return self.conv(x), self.conv.weight * 2


def test_the_caller_may_write_to_results(on_a_gpu):
    converted, _ = cuconv.nn.convert(Returning().eval(), X)
    with torch.no_grad():
        before = converted(X)[1].clone()
        converted(X)[1].zero_()
        assert torch.equal(converted(X)[1], before)


class Counted(nn.Module):
    """Classes derived from it must have a name of their own."""

    names = set()  # noqa: RUF012

    def __init_subclass__(cls, *, name):
        assert name not in Counted.names
        Counted.names.add(name)


class Layer(Counted, name="layer"):
    def __init__(self):
        super().__init__()
        self.conv = conv()

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize("make", [Layer, lambda: nn.Sequential(Layer())])
def test_classes_that_register_their_subclasses(on_a_gpu, make):
    model = make().eval()
    converted, report = cuconv.nn.convert(model, X)
    torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
    assert report.captured and Counted.names == {"layer"}


class ByClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x) * (2 if type(self.block) is Block else 1)


def test_a_model_that_asks_for_classes_keeps_them(on_a_gpu):
    model = ByClass().eval()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured and type(converted.block) is Block
    for inputs in (X, X.clone().requires_grad_()):
        torch.testing.assert_close(converted(inputs), model(inputs), rtol=1e-4, atol=1e-5)


def tied():
    torch.manual_seed(3)
    model = nn.Sequential(conv(), nn.ReLU(), conv(), batch_norm())
    model[2].weight = model[0].weight
    return model.requires_grad_(False).eval()


UNTIED = {
    "attribute": lambda model: setattr(model[2], "weight", constant(0.5, 4, 4, 1, 1)),
    "state": lambda model: model.load_state_dict(
        {name: tensor + place for place, (name, tensor) in enumerate(model.state_dict().items())}, assign=True
    ),
}


@pytest.mark.parametrize("change", UNTIED)
def test_tied_weights_that_are_untied(on_a_gpu, change):
    model = tied()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured
    for one in (model, converted):
        UNTIED[change](one)
    with torch.no_grad():
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)


class Listed(nn.Module):
    """Calls its layers by a list, which is not among its modules."""

    def __init__(self):
        super().__init__()
        self.first, self.last = conv(), conv()
        self.layers = [self.first, self.last]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("name", "value"), [("bias", None), ("padding", (1, 1)), ("weight", constant(0.5, 4, 4, 1, 1).requires_grad_())]
)
def test_layers_that_the_model_knows_by_a_list_may_change(on_a_gpu, name, value):
    model = Listed().eval()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured
    for one in (model, converted):
        setattr(one.last, name, value)
    torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)


def test_refresh_takes_over_numbers_that_are_read_from_tensors(on_a_gpu):
    model = Model(lambda model, x: model.conv(x) * float(model.scale), conv=conv(), scale=torch.tensor(2.0)).eval()
    converted, _ = cuconv.nn.convert(model, X)
    model.scale.fill_(3)
    converted.refresh(model)
    torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)


class Tensors(nn.Module):
    """Tensors of each kind: a buffer without state, an attribute, a constant of the code, and a type that is read."""

    def __init__(self):
        super().__init__()
        self.conv, self.scale = conv(), torch.ones(4, 1, 1)
        self.register_buffer("shift", torch.ones(()), persistent=False)

    def forward(self, x):
        kind = self.conv.weight.dtype
        x = x.to(kind) - torch.tensor([0.485, 0.456, 0.406, 0.3], dtype=kind, device=x.device).view(4, 1, 1)
        return (self.conv(x) * self.scale + self.shift).to(kind)


@pytest.mark.parametrize("of_original", [True, False])
def test_refresh_takes_over_every_tensor(on_a_gpu, of_original):
    model = Tensors().requires_grad_(False).eval()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured
    for one in (model,) if of_original else (model, converted):
        for tensor in (one.conv.weight, one.scale, one.shift):
            tensor.mul_(5)
    converted.refresh(model if of_original else None)
    with torch.no_grad():
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
    assert converted._graphs is not None


MOVES = {
    "to another type": lambda model: model.bfloat16(),
    "to another type and back": lambda model: model.half().float(),
    "to no data": lambda model: model.to_empty(device="cpu"),
}


@pytest.mark.parametrize("x", [X, torch.arange(288).view(1, 4, 8, 9)], ids=["floats", "integers"])
@pytest.mark.parametrize("move", MOVES)
def test_constants_of_the_code_stay_what_they_are(on_a_gpu, move, x):
    model = Tensors().requires_grad_(False).eval()
    state = copy.deepcopy(model.state_dict())
    converted, _ = cuconv.nn.convert(model, x)
    for one in (model, converted):
        MOVES[move](one)
        one.load_state_dict(state)
        one.shift.fill_(1)
    if converted._graphs is not None:
        converted.refresh()
    with torch.no_grad():
        ours, theirs = converted(x), model(x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_parametrizations_can_be_removed(on_a_gpu):
    model = nn.Sequential(parametrizations.weight_norm(conv()), nn.ReLU()).eval()
    converted, _ = cuconv.nn.convert(model, X)
    expected = model(X)
    parametrize.remove_parametrizations(converted[0], "weight")
    torch.testing.assert_close(converted(X), expected, rtol=1e-4, atol=1e-5)
    assert not parametrize.is_parametrized(converted[0])


class Doubling(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        return result * 2 if function is F.relu else result


def test_function_modes_see_the_model_s_own_operations(on_a_gpu):
    model = made()
    converted, _ = cuconv.nn.convert(model, X)
    with torch.no_grad(), Doubling():
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
    on_a_gpu.clear()
    with torch.no_grad(), torch.device("cpu"):
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)


def by_name(model, x):
    return model.conv(x) * {"Model": 2}[type(model).__name__]


def test_a_model_that_asks_for_its_name(on_a_gpu):
    model = Model(by_name, conv=conv()).eval()
    converted, report = cuconv.nn.convert(model, X)
    torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
    assert report.captured
