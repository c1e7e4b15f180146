"""Networks by name, random batch norm, and the reference in float64; torchvision and timm are made up."""

import sys
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harness.errors import UsageError
from harness.experiments.networks import models as network_models
from harness.experiments.networks.models import find, logits, randomise_batch_norm, reference, split_name
from tests.harness.experiments.networks.test_architectures import Raft
from tests.harness.experiments.networks.toy_networks import ToyModel, network


@pytest.fixture
def packages(monkeypatch):
    """torchvision and timm, each with the network toynet; returns the arguments that they build it with."""
    calls = []

    def build(name, **arguments):
        calls.append((name, arguments))
        return Raft() if name == "raft_small" else ToyModel()

    names = ["toynet", "googlenet", "inception_v3", "fcn", "raft_small"]
    builders = {"fcn": lambda weights, weights_backbone: None}
    models = SimpleNamespace(
        list_models=lambda: names,
        get_model=build,
        get_model_builder=lambda name: builders.get(name, lambda weights: None),
    )
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(list_models=lambda: ["toynet"], create_model=build))
    return calls


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("resnet50", ("torchvision", "resnet50")),
        ("torchvision:vit_b_16", ("torchvision", "vit_b_16")),
        ("timm:resnest14d", ("timm", "resnest14d")),
        ("convnext_tiny", ("torchvision", "convnext_tiny")),
        ("unet", ("harness", "unet")),
        ("harness:hifi_gan", ("harness", "hifi_gan")),
    ],
)
def test_a_name_has_a_source(typed, found):
    assert split_name(typed) == found


@pytest.mark.parametrize("typed", ["resnext", "timm:", "tensorflow:resnet50", "harness:resnet50", ""])
def test_a_name_without_a_source_is_refused(typed):
    with pytest.raises(UsageError, match=f"--net {typed}: must be one of alexnet.*torchvision:NAME or timm:NAME"):
        split_name(typed)


def test_networks_are_built_without_weights(packages):
    assert find("torchvision:toynet").label == "toynet" and find("timm:toynet").label == "timm:toynet"
    for typed in ("torchvision:toynet", "timm:toynet", "googlenet", "torchvision:fcn"):
        find(typed).build()
    options = {"aux_logits": False, "init_weights": True, "transform_input": False}
    assert packages == [
        ("toynet", {"weights": None}),
        ("toynet", {"pretrained": False}),
        ("googlenet", {"weights": None, **options}),
        ("fcn", {"weights": None, "weights_backbone": None}),
    ]
    assert find("torchvision:inception_v3").input(2, seed=0).shape == (2, 3, 299, 299)
    assert find("timm:toynet").input(2, seed=0).shape == (2, 3, 224, 224)


def test_a_network_of_the_harness_needs_no_package():
    for typed in network_models.OWN:
        found = find(typed)
        assert found.label == typed and found.input(2, seed=0).shape[1:] == found.shape
        assert isinstance(found.build(), network_models.OWN[typed][0])
    assert find("harness:hifi_gan").input(2, seed=0).shape == (2, 80, 256)


def test_raft_takes_two_images_as_one_tensor(packages):
    found = find("raft_small")
    images = found.input(1, seed=0)
    assert images.shape == (1, 2, 3, 256, 256)
    with torch.no_grad():
        assert found.model(seed=0)(images).shape == (1, 2, 256, 256)


def test_a_name_that_the_package_lacks_is_one_sentence(packages):
    with pytest.raises(UsageError, match=r"--net timm:toynot: timm has no network 'toynot': it has toynet, \.\.\."):
        find("timm:toynot")


@pytest.mark.parametrize(("typed", "remedy"), [("resnet50", r"\.\[networks\]"), ("timm:toynet", "pip install timm")])
def test_a_missing_package_is_one_sentence(monkeypatch, typed, remedy):
    for name in ("torchvision", "torchvision.models", "timm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(network_models, "import_module", missing)
    with pytest.raises(UsageError, match=f"--net {typed}: it needs .*, which is not installed; .*{remedy}"):
        find(typed)


def missing(module):
    raise ModuleNotFoundError(f"No module named '{module}'", name=module.partition(".")[0])


def test_a_torchvision_of_another_torch_is_one_sentence(monkeypatch):
    def broken(module):
        raise RuntimeError("operator torchvision::nms does not exist\nmore")

    monkeypatch.setattr(network_models, "import_module", broken)
    with pytest.raises(UsageError, match=r"cannot be imported \(operator torchvision::nms does not exist\)"):
        find("resnet50")


def test_a_seed_gives_the_same_model_and_leaves_torch_s_generator_alone():
    before = torch.get_rng_state()
    one, other, third = (network().model(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    assert not torch.equal(one.norm.running_var, third.norm.running_var)
    assert not one.training and not one.norm.training and not one.conv.weight.requires_grad
    assert torch.equal(network().input(3, 0), network().input(3, 0))


def test_batch_norm_gets_statistics_near_those_of_its_input_and_keeps_its_momentum():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    nn.init.normal_(model[0].weight, std=0.1)
    nn.init.constant_(model[0].bias, 100.0)
    images = torch.randn(8, 3, 9, 9)
    randomise_batch_norm(model, images)
    norm, seen = model[1], model[0](images)
    ratio = norm.running_var / seen.var((0, 2, 3))
    assert ((ratio > 0.75) & (ratio < 1.3)).all() and (ratio - 1).abs().max() > 1e-3
    assert torch.allclose(norm.running_mean, torch.tensor(100.0), rtol=0.01)
    assert norm.momentum == 0.1 and not norm.training
    assert ((norm.weight >= 0.5) & (norm.weight <= 1.5)).all() and norm.bias.abs().max() > 0


def test_activations_of_a_deep_network_stay_in_range():
    layers = [layer for _ in range(60) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())]
    model = nn.Sequential(*layers).eval()
    randomise_batch_norm(model, torch.randn(4, 3, 8, 8))
    output = model(torch.randn(2, 3, 8, 8))
    assert output.isfinite().all() and 1e-3 < output.std() < 1e3


def test_the_reference_is_float64_and_takes_pieces_where_memory_does_not_suffice():
    sizes = []

    class Greedy(ToyModel):
        def forward(self, x):
            sizes.append(len(x))
            if len(x) > 2:
                raise torch.OutOfMemoryError("too much")
            return super().forward(x)

    model, images = Greedy().eval(), torch.randn(5, 3, 8, 8)
    found = reference(model, images)
    plain = ToyModel().eval()
    plain.load_state_dict(model.state_dict())
    assert found.dtype == torch.float64 and sizes == [5, 3, 2, 2, 1]
    assert torch.allclose(found, deepcopy(plain).double()(images.double()), rtol=1e-12)
    assert model.conv.weight.dtype == torch.float32


def test_the_logits_of_networks_with_several_outputs():
    one, two = torch.zeros(1), torch.ones(1)
    assert logits({"aux": one, "out": two}) is two and logits({"a": one}) is one and logits((two, one)) is two
