"""torch.compile(model, backend="cuconv") on a CPU: what is folded, and that the results stay those of the model."""

import copy
import gc
import tomllib
import weakref
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cuconv.nn import backend
from tests.cuconv.nn.models import MODELS, close, made
from tests.cuconv.nn.test_zoo import assert_same, results
from tests.cuconv.nn.zoo import ZOO
from tests.cuconv.nn.zoo.entries import Model

FROZEN = {"freeze": True}


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def compiled(model, **options):
    return torch.compile(model, backend=backend.cuconv, dynamic=True, options=options or None)


FOLDED = {  # the number of convolutions in a call, with a residual, and with ReLU
    "sequential": (2, 0, 1),
    "block": (3, 1, 2),
    "branches": (4, 0, 2),
    "fire": (3, 0, 3),
    "classifier": (3, 0, 2),
    "untraceable": (2, 0, 1),
    "writes its input": (1, 1, 0),
}


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, FROZEN])
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_computes_the_same_and_folds_what_follows_a_convolution(on_a_gpu, name, options):
    model, x = made(name)
    ours = compiled(model, **options)
    for images in (x, torch.cat([x, x, x]), x[..., :-2]) if name != "classifier" else (x, torch.cat([x, x, x])):
        assert close(ours(images), copy.deepcopy(model).double()(images.double()))
        found = (
            len(on_a_gpu),
            sum(call["residual"] for call in on_a_gpu),
            sum(call["activation"] == "relu" for call in on_a_gpu),
        )
        assert found == FOLDED[name] or not options
        assert {call["kind"] for call in on_a_gpu} == {"prepared" if options else "plain"}
        on_a_gpu.clear()


def first_results(entry, place, **options):
    """The results of an entry's example and calls, by the model compiled with options of torch.compile, or as it is."""
    torch.manual_seed(3)  # an entry is made twice, with the same weights
    model = place(entry.make())
    example = entry.example if isinstance(entry.example, (tuple, dict)) else (entry.example,)
    calls = [place(call) for call in [((), example) if isinstance(example, dict) else (example, {}), *entry.calls]]
    torch._dynamo.reset()
    return results(torch.compile(model, dynamic=True, **options) if options else model, calls, torch.no_grad)


def check_compiled(entry, place=lambda value: value):
    """Compile a model of the zoo and compare its results with the model's own, or with those of torch.compile.

    Some models ask whether they are compiled, or for more than torch.compile keeps: then its result is expected.
    """
    ours = first_results(entry, place, backend=backend.cuconv, options=FROZEN)
    try:
        assert_same(ours, first_results(entry, place))
    except AssertionError:
        assert_same(ours, first_results(entry, place, backend="aot_eager"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(ZOO)[::4])  # all of them on a GPU
def test_a_compiled_model_of_the_zoo_is_what_torch_compile_makes_of_it(on_a_gpu, name):
    check_compiled(ZOO[name])


@torch.no_grad()
def test_live_weights_are_read_at_each_call(on_a_gpu):
    model, x = made("block")
    ours = compiled(model)
    ours(x)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.mul_(1.5)
    assert close(ours(x), model(x))


@torch.no_grad()
def test_frozen_weights_are_those_of_the_tensors_that_a_model_has(on_a_gpu):
    model, x = made("block")
    ours, before = compiled(model, **FROZEN), model(x)
    assert close(ours(x), before)
    state = {
        name: tensor * 1.5 if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()
    }
    model.first[0].weight.mul_(1.5)
    assert not close(model(x), before) and close(ours(x), model(x)), "written in place"
    model.load_state_dict(state, assign=True)
    assert close(ours(x), model(x)), "other tensors"


@torch.no_grad()
def test_models_that_share_compiled_code_keep_their_own_frozen_weights(on_a_gpu):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([made("untraceable")[0] for _ in range(3)])
            for place, block in enumerate(self.blocks):
                block.last.weight.mul_(place + 1)

        def forward(self, x):
            return [block(x) for block in self.blocks]  # each breaks the graph, so each is compiled by itself

    model, x = Blocks().eval(), made("untraceable")[1]
    ours = compiled(model, **FROZEN)
    for _ in range(2):
        assert all(close(one, other) for one, other in zip(ours(x), model(x), strict=True))


@torch.no_grad()
def test_buffers_that_a_model_writes_are_not_frozen(on_a_gpu):
    def function(model, x):
        y = model.conv(x) * model.step
        torch._dynamo.graph_break()
        model.step.add_(1)
        return y

    def make():
        torch.manual_seed(4)
        model = Model(function, conv=nn.Conv2d(4, 4, 1))
        model.register_buffer("step", torch.ones(1))
        return model.eval()

    ours, theirs, x = compiled(make(), **FROZEN), make(), torch.randn(2, 4, 5, 5)
    for _ in range(3):
        assert close(ours(x), theirs(x))


@torch.no_grad()
def test_results_that_depend_on_weights_alone_are_the_callers(on_a_gpu):
    model = Model(
        lambda model, x: (model.conv(x), model.conv.weight * 2, (model.conv.weight * 2).view(-1)),
        conv=nn.Conv2d(4, 4, 1),
    )
    ours, x = compiled(model.eval(), **FROZEN), torch.randn(2, 4, 5, 5)
    for _ in range(2):
        _, *doubled = ours(x)
        for one in doubled:
            assert close(one.view(-1), model.conv.weight.view(-1) * 2)
            one.zero_()


@torch.no_grad()
def test_packed_weights_go_with_the_model(on_a_gpu):
    model, x = made("block")
    compiled(model, **FROZEN)(x)
    weight = weakref.ref(model.first[0].weight)
    del model
    gc.collect()
    assert weight() is None


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, FROZEN])
def test_images_with_channels_last_are_converted_at_the_border(on_a_gpu, options):
    def function(model, x):
        y = F.relu(model.conv(x))
        rows = y.permute(0, 2, 3, 1).flatten(1, 2)  # a view of channels_last alone
        return y, rows, y.mean((2, 3)), y.permute(0, 2, 3, 1)

    model = Model(function, conv=nn.Conv2d(4, 8, 3)).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 9, 11).contiguous(memory_format=torch.channels_last)
    ours, theirs = compiled(model, **options)(x), model(x)
    assert on_a_gpu
    for one, other in zip(ours, theirs, strict=True):
        assert close(one, other) and one.stride() == other.stride()


SIZES = {
    "a factor": {"scale_factor": 2},
    "factors": {"scale_factor": (1.5, 2.0), "mode": "bilinear"},
    "a size": {"size": 7, "mode": "bicubic", "align_corners": True},
    "sizes": {"size": (7, 13), "mode": "bilinear", "antialias": True},
    "recomputed": {"scale_factor": 1.3, "mode": "bilinear", "recompute_scale_factor": True},
}


@torch.no_grad()
@pytest.mark.parametrize("name", SIZES)
def test_interpolation_is_one_operation(on_a_gpu, name):
    model = Model(lambda model, x: F.interpolate(model.conv(x), **SIZES[name]), conv=nn.Conv2d(4, 4, 1)).eval()
    ours = compiled(model)
    for x in (torch.randn(2, 4, 9, 11), torch.randn(3, 4, 8, 6)):
        assert close(ours(x), model(x))
        with torch.profiler.profile() as profile:
            ours(x)
        assert not {"aten::arange", "aten::_unsafe_index"}.intersection(event.key for event in profile.key_averages())


@torch.no_grad()
def test_interpolation_to_the_size_of_another_image(on_a_gpu):
    def function(model, x, scale):
        return F.interpolate(model.conv(x), size=x.shape[2:]), F.interpolate(x, scale_factor=scale)

    model = Model(function, conv=nn.Conv2d(4, 4, 3)).eval()
    ours = compiled(model)
    for x, scale in ((torch.randn(2, 4, 9, 11), 2.0), (torch.randn(3, 4, 8, 6), 1.5)):
        assert all(close(one, other) for one, other in zip(ours(x, scale), model(x, scale), strict=True))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, FROZEN])
def test_constants_of_the_code_and_batch_norms_that_are_left(on_a_gpu, options):
    def function(model, x):
        mean = torch.tensor([0.4, 0.3, 0.2, 0.1], device=x.device).view(4, 1, 1)
        return model.conv(model.norm(x - mean)).relu() * torch.tensor(3.0)

    norm = made("block")[0].second[1]
    model = Model(function, conv=nn.Conv2d(4, 4, 3), norm=nn.BatchNorm2d(4)).eval()
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(model.norm, name).copy_(getattr(norm, name)[:4])
    ours, x = compiled(model, **options), torch.randn(2, 4, 9, 11)
    assert close(ours(x), model(x)) and on_a_gpu


def test_gradients_are_left_to_torch(on_a_gpu):
    model, x = made("block")
    with pytest.warns(UserWarning, match="no_grad"):
        compiled(model)(x).sum().backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(close(one, parameter.grad) for one, parameter in zip(ours, model.parameters(), strict=True))
    assert not on_a_gpu


@torch.no_grad()
@pytest.mark.parametrize("options", [{"freze": True}, {"freeze": 1}, {"precision": "half"}])
def test_unknown_options_are_refused(options):
    model, x = made("fire")
    with pytest.raises(Exception, match=r"'freze'|'freeze': 1|'half'"):
        torch.compile(model, backend=backend.cuconv, options=options)(x)


@torch.no_grad()
def test_the_precision_reaches_the_kernels(on_a_gpu):
    model, x = made("block")
    compiled(model, freeze=True, precision="tf32")(x)
    assert {call["precision"] for call in on_a_gpu} == {"tf32"}


def test_torch_finds_the_backend():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    (entry,) = project["project"]["entry-points"]["torch_dynamo_backends"].items()
    assert EntryPoint(*entry, "torch_dynamo_backends").load() is backend.cuconv
