"""Models converted on a CPU: what is folded and replaced, and that the outputs stay those of the model."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import cuconv.nn
from cuconv.core.problem import ConvProblem
from cuconv.nn.convert import _Conversion
from cuconv.precompile import PlannedCall
from tests.cuconv.nn.models import MODELS, close, made
from tests.cuconv.nn.zoo.entries import Model


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_computes_the_same(on_a_gpu, name):
    model, x = made(name)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(x.double())
        converted, report = cuconv.nn.convert(model, x)
        assert close(converted(x.clone()), truth)
    assert on_a_gpu and not report.left
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), "the model is unchanged"


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("sequential", [("batch norm", "relu"), ()]),
        ("block", [("batch norm", "relu"), ("batch norm", "residual", "relu"), ("batch norm",)]),
        ("branches", [(), ("relu",), (), ("batch norm", "relu")]),
        ("fire", [("relu",), ("relu",), ("relu",)]),
        ("classifier", [("relu",), ("relu",), ()]),
        ("untraceable", [("batch norm", "relu"), ()]),
        ("writes its input", [("residual",)]),
    ],
)
def test_the_report_tells_what_was_folded(on_a_gpu, name, folded):
    _, report = cuconv.nn.convert(*made(name))
    assert [row.folded for row in report.rows] == folded
    assert str(report).startswith(f"{len(folded)} of {len(folded)} layers replaced")
    assert report.captured


def test_the_report_tells_what_is_packed(on_a_gpu):
    _, report = cuconv.nn.convert(*made("fire"))
    assert report.packed_bytes == 3 * 2**20 and "3.0 MiB" in str(report)


def test_what_stays_with_torch_is_told(on_a_gpu):
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ConvTranspose2d(4, 4, 1, stride=2), nn.Conv2d(4, 4, 1).double())
    model[1].register_forward_hook(lambda module, inputs, output: output.double())
    _, report = cuconv.nn.convert(model.eval(), torch.randn(1, 3, 6, 6))
    assert ["stride 2" in row.reason for row in report.left] == [True, False]
    assert report.left[1].reason == "its input is torch.float64"


def test_a_layer_of_signals_that_torch_computes_has_its_own_reason():
    _, report = cuconv.nn.convert(nn.Sequential(nn.Conv1d(3, 4, 3)).eval(), torch.randn(2, 3, 16))
    assert "type cpu" in report.left[0].reason


def test_a_fully_connected_layer_of_another_shape_stays_with_torch(on_a_gpu):
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model[0].bias = nn.Parameter(torch.ones(1))
    converted, report = cuconv.nn.convert(model.eval(), torch.randn(2, 4))
    assert [row.name for row in report.replaced] == ["1"]
    assert converted(torch.ones(2, 4)).shape == (2, 3)


def test_a_conversion_in_a_dispatch_mode_is_refused():
    with FlopCounterMode(display=False), pytest.raises(cuconv.nn.ConversionError, match="outside of it"):
        cuconv.nn.convert(pointwise().eval(), torch.zeros(1, 4, 8, 9))


def test_a_conversion_in_an_enabled_block_is_compared_with_torch(on_a_gpu):
    model, x = made("block")
    with torch.no_grad():
        _, report = cuconv.nn.convert(model, x)
        elsewhere = list(on_a_gpu)
        on_a_gpu.clear()
        with cuconv.nn.enabled():
            converted, inside = cuconv.nn.convert(model, x)
            assert on_a_gpu == elsewhere, "the model itself is torch's"
            assert close(converted(x), copy.deepcopy(model).double()(x.double()))
    assert inside.captured and report.captured


def test_the_precision_reaches_the_kernels(on_a_gpu):
    model, x = made("block")
    with torch.no_grad():
        cuconv.nn.convert(model, x, precision="tf32")[0](x)
    assert {call["precision"] for call in on_a_gpu} == {"tf32"}


def planned(model, x):
    """The calls whose kernels are compiled for a conversion."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _Conversion, "_precompile", lambda self, folded, inputs: found.append(folded.planned_calls(inputs))
        )
        cuconv.nn.convert(model, x)
    return found[0]


def test_the_calls_of_a_graph_are_known_before_it_runs(on_a_gpu):
    expected = {PlannedCall(ConvProblem(2, 3, 12, 13, 8, 3, 3)), PlannedCall(ConvProblem(2, 8, 5, 5, 4, 1, 1))}
    assert planned(*made("sequential")) == expected


@pytest.mark.parametrize("images", [1, 3])
def test_planned_branches_are_slices(on_a_gpu, images):
    calls = planned(DIFFICULT["branches"]().eval(), torch.zeros(images, 4, 8, 9))
    assert calls == {PlannedCall(ConvProblem(images, 4, 8, 9, 4, 1, 1), output_channels=None if images == 1 else 8)}


# Models that are easily converted wrongly


def pointwise():
    return nn.Conv2d(4, 4, 1)


def adds_a_relu_in_place(model, x):
    x = x + 0
    out = model.conv(x)
    return out + torch.relu_(x)


def adds_a_relu_in_place_by_position(model, x):
    x = x + 0
    out = model.conv(x)
    return out + F.relu(x, True)


def scales_the_sum_of_a_branch(model, x):
    x = x + 0
    out = model.conv(x) + x
    scaled = x.mul_(3)
    return torch.cat([F.relu(out), scaled])


def calls_one_convolution_often(model, x):
    return model.conv(x) + model.conv(x * 2) + model.conv_0(x) + model.conv_1(x)


def iterates(model, x):
    outputs = []
    if x.sum() > -1e9:
        for layer in model.layers:
            x = layer(x)
            outputs.append(x)
    return torch.cat(outputs)


def hooked(place):
    model = nn.Sequential(pointwise(), nn.BatchNorm2d(4), nn.ReLU())
    model[place].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def writes_between_branches(model, x):
    x = x + 0
    a = model.conv(x)
    x.mul_(2)
    return torch.cat([a, model.conv_0(x)], 1)


REFUSED = {
    "training": (lambda: nn.Conv2d(4, 4, 1).train(), None, r"training mode.*call model\.eval\(\) first"),
    "script": (lambda: torch.jit.script(pointwise()), None, r"ScriptModule.*cuconv\.nn\.enabled"),
    "lazy": (lambda: nn.LazyConv2d(4, 1), None, "call the model once first"),
    "no such argument": (pointwise, {"image": torch.zeros(1, 4, 8, 9)}, "cannot be called with the example"),
    "too many arguments": (pointwise, (torch.zeros(1, 4, 8, 9), 2), "cannot be called with the example"),
    "wrong channels": (pointwise, torch.zeros(1, 3, 8, 9), "cannot be called with the example.*4 channels"),
    "no tensor": (pointwise, None, "cannot be called with the example"),
    "a list": (pointwise, [torch.zeros(1, 4, 8, 9)], r"cannot be called with the example: .* got \(list, .*\)$"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused(name):
    make, example, message = REFUSED[name]
    model = make() if name == "training" else make().eval()
    with pytest.raises(cuconv.nn.ConversionError, match=message):
        cuconv.nn.convert(model, example)


DIFFICULT = {
    "a number is added": lambda: Model(lambda model, x: model.conv(x) + x.size(1), conv=pointwise()),
    "a double is added": lambda: Model(lambda model, x: model.conv(x) + x.double(), conv=pointwise()),
    "a sum that broadcasts": lambda: Model(lambda model, x: model.conv(x) + x[:, :1], conv=pointwise()),
    "a larger sum": lambda: Model(lambda model, x: model.conv(x[:1]) + x, conv=pointwise()),
    "the same twice": lambda: Model(lambda model, x: (lambda y: y + y)(model.conv(x)), conv=pointwise()),
    "relu_ between": lambda: Model(adds_a_relu_in_place, conv=pointwise()),
    "relu in place by position": lambda: Model(adds_a_relu_in_place_by_position, conv=pointwise()),
    "mul_ after the sum": lambda: Model(scales_the_sum_of_a_branch, conv=pointwise()),
    "input by name": lambda: Model(lambda model, x: F.relu(model.conv(input=x)), conv=pointwise()),
    "the model is a convolution": pointwise,
    "a function": lambda: Model(lambda model, x: F.conv2d(x, model.conv.weight, padding=1), conv=pointwise()),
    "names that clash": lambda: Model(
        calls_one_convolution_often, conv=pointwise(), conv_0=pointwise(), conv_1=pointwise()
    ),
    "layers that are iterated": lambda: Model(
        iterates, layers=nn.Sequential(pointwise(), nn.BatchNorm2d(4), nn.ReLU())
    ),
    "a hook on a convolution": lambda: hooked(0),
    "a hook on a batch norm": lambda: hooked(1),
    "a hook on a ReLU": lambda: hooked(2),
    "channels_last weights": lambda: pointwise().to(memory_format=torch.channels_last),
    "same padding, even filter": lambda: nn.Conv2d(4, 4, 2, padding="same"),
    "same padding, even filter, dilation": lambda: nn.Conv2d(4, 4, 2, padding="same", dilation=2),
    "other convolutions": lambda: nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=3), pointwise()),
    "a batch norm without statistics": lambda: nn.Sequential(pointwise(), nn.BatchNorm2d(4, track_running_stats=False)),
    "branches": lambda: Model(
        lambda model, x: torch.cat([F.relu(model.conv(x)), model.conv_0(x)], 1), conv=pointwise(), conv_0=pointwise()
    ),
    "a batch norm after a fully connected layer": lambda: nn.Sequential(
        pointwise(), nn.Flatten(), nn.Linear(4 * 8 * 9, 6), nn.BatchNorm1d(6), nn.ReLU()
    ),
    "a weight that is read": lambda: Model(
        lambda model, x: F.linear(model.fc(x), model.fc.weight.T) + model.fc.bias.sum(), fc=nn.Linear(9, 5)
    ),
    "a weight that is read, not traced": lambda: Model(
        lambda model, x: model.fc(x) @ model.fc.weight if x.sum() > -1e9 else x, fc=nn.Linear(9, 5)
    ),
    "rows of an image": lambda: nn.Sequential(pointwise(), nn.Linear(9, 5), nn.ReLU()),
    "few rows": lambda: nn.Sequential(nn.AdaptiveAvgPool2d((2, 9)), nn.Linear(9, 5), nn.ReLU()),
    "branches with the same convolution": lambda: Model(
        lambda model, x: torch.cat([model.conv(x), model.conv(x * 2)], dim=1), conv=pointwise()
    ),
    "the same branch twice": lambda: Model(
        lambda model, x: (lambda y: torch.cat([y, y], 1))(model.conv(x)), conv=pointwise()
    ),
    "a write between branches": lambda: Model(writes_between_branches, conv=pointwise(), conv_0=pointwise()),
    "branches along the batch": lambda: Model(
        lambda model, x: torch.cat([model.conv(x), model.conv_0(x)]), conv=pointwise(), conv_0=pointwise()
    ),
    "branches with a residual": lambda: Model(
        lambda model, x: torch.cat([model.conv(x) + x, model.conv_0(x)], 1), conv=pointwise(), conv_0=pointwise()
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    ("name", "images"), [(name, 3) for name in DIFFICULT] + [(name, 1) for name in DIFFICULT if "branch" in name]
)
def test_a_difficult_model_computes_the_same(on_a_gpu, name, images):
    torch.manual_seed(2)
    model, x = DIFFICULT[name]().eval(), torch.randn(images, 4, 8, 9)
    for parameter in model.parameters():
        parameter.data.add_(0.1)  # scales and shifts of batch norms that are not 1 and 0
    converted, _ = cuconv.nn.convert(model, x)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            expected, ours = model(x.clone()), converted(x.clone())
        assert ours.dtype == expected.dtype and ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5, check_stride=False)


@pytest.mark.parametrize("images", [1, 3])
def test_branches_are_written_to_their_place(on_a_gpu, images):
    model = DIFFICULT["branches"]().eval()
    converted, report = cuconv.nn.convert(model, torch.randn(images, 4, 8, 9))
    assert concatenations(converted) == 1 and [row.folded for row in report.rows] == [("relu",), ()]
    on_a_gpu.clear()
    with torch.no_grad():
        converted(torch.randn(images, 4, 8, 9))
    assert [call["out"] for call in on_a_gpu] == [True] * 2


def concatenations(converted):
    """How often the program of a converted model joins convolutions."""
    return max(str(graph).count("self.layer_cat") for graph in converted._graphs.of_calls())


@pytest.mark.parametrize("name", ["branches along the batch", "the same branch twice"])
def test_what_cannot_be_written_to_its_place_stays(on_a_gpu, name):
    converted, _ = cuconv.nn.convert(DIFFICULT[name]().eval(), torch.randn(2, 4, 8, 9))
    assert concatenations(converted) == 0


def test_modules_in_training_mode_stay_so():
    model = nn.Sequential(pointwise(), nn.BatchNorm2d(4), nn.Dropout()).eval()
    model[1].training = model[2].training = True
    converted, report = cuconv.nn.convert(model, torch.randn(2, 4, 8, 9))
    assert [module.training for module in converted.children()] == [False, True, True]
    assert report.rows[0].folded == ()


def test_what_is_neither_a_1d_nor_a_2d_convolution_is_told(on_a_gpu):
    layers = nn.ModuleList([nn.ConvTranspose3d(2, 2, 1), nn.Conv3d(2, 2, 1)])

    def call(model, x):
        return model.layers[0](x[:, :, None]), model.layers[1](x[:, :, None])

    model = Model(call, layers=layers)
    _, report = cuconv.nn.convert(model.eval(), torch.randn(2, 2, 6, 6))
    assert [row.reason for row in report.left] == ["it is conv_transpose3d", "it is conv3d"]


def test_a_report_of_a_model_that_is_not_captured_says_why(on_a_gpu):
    model = Model(lambda model, x: model.conv(x) + x._version, conv=pointwise()).eval()
    converted, report = cuconv.nn.convert(model, x := torch.randn(2, 4, 8, 9))
    assert "_version" in report.why_not_captured and report.why_not_captured in str(report)
    converted(x.add_(1))
    assert (report.folded_calls, report.own_calls) == (0, 1)


def writes_to_a_chunk(model, x):
    first, second = model.conv(x).chunk(2, 1)
    return first.add_(second)


def counts_and_adds(model, x):
    model.calls += 1
    return torch.add(model.conv(x), model.calls, out=torch.empty_like(x))


@pytest.mark.parametrize("function", [writes_to_a_chunk, counts_and_adds])
def test_a_model_that_raises_with_gradients_on_is_converted(on_a_gpu, function):
    model, x = Model(function, conv=pointwise(), calls=0).eval(), torch.randn(2, 4, 8, 9)
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)(x)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and not report.why_not_compared
    with torch.no_grad():
        assert close(converted(x), model(x))


TABLES = {}


def adds_a_table(model, x):
    """A model that keeps tensors for each size in a global variable."""
    images = int(x.shape[0])
    if images not in TABLES:
        TABLES[images] = torch.arange(images).float()[:, None, None, None]
    return model.conv(x) + TABLES[images]


def test_global_variables_keep_no_tensors_without_data(on_a_gpu):
    model = Model(adds_a_table, conv=pointwise()).eval()
    converted, _ = cuconv.nn.convert(model, torch.randn(1, 4, 8, 9))
    assert {type(table) for table in TABLES.values()} == {torch.Tensor}
    for images in (1, 2, 3):
        x = torch.randn(images, 4, 8, 9)
        assert close(converted(x), model(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_outputs_that_torch_cannot_compare_are_told(on_a_gpu):
    model = Model(lambda model, x: torch.nested.nested_tensor(list(model.conv(x))), conv=pointwise()).eval()
    converted, report = cuconv.nn.convert(model, torch.randn(2, 4, 8, 9))
    assert "an output cannot be compared" in report.why_not_compared
    assert converted(torch.randn(3, 4, 8, 9)).size(0) == 3


def test_a_model_that_torch_cannot_copy_is_refused():
    model = nn.Sequential(pointwise()).eval()
    model.lock = (line for line in [])  # a generator
    with pytest.raises(ValueError, match="the model cannot be copied"):
        cuconv.nn.convert(model, torch.randn(1, 4, 8, 9))


@pytest.mark.parametrize("precision", ["half", None, torch.float32])
def test_an_unknown_precision_is_refused(precision):
    with pytest.raises(ValueError, match=r"precision=.*must be one of fp32, tf32"):
        cuconv.nn.convert(pointwise().eval(), torch.randn(1, 4, 8, 9), precision=precision)


# The modules


def test_conversions_leave_torchs_settings_alone():
    """In a process of its own, whose settings are still torch's defaults."""
    code = """if True:
        import threading, torch, cuconv.nn
        from torch import nn
        model, x = nn.Conv2d(3, 8, 1).eval(), torch.randn(1, 3, 2, 2)
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        cuconv.nn.convert(model, x)
        assert torch.backends.cudnn.conv.fp32_precision == "ieee" and torch.backends.cudnn.rnn.fp32_precision == "tf32"
        torch.backends.cudnn.conv.fp32_precision = "tf32"
        threads = [threading.Thread(target=cuconv.nn.convert, args=(model, x)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.backends.cudnn.allow_tf32 and torch.backends.cudnn.conv.fp32_precision == "tf32"
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
