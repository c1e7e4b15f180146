"""The examples of the README and of the page for CuPy, whole, compared with torch."""

import pytest
import torch
import torch.nn.functional as F

from tests.docs.examples import examples

CONVERT, CALLS = examples("README.md")


def test_the_converted_model_computes_what_the_model_does():
    torchvision = pytest.importorskip("torchvision")
    names = {}
    exec("import torch\ntorch.manual_seed(0)\n" + CONVERT, names)
    torch.manual_seed(0)
    x = torch.randn(8, 3, 224, 224, device="cuda")
    model = torchvision.models.resnet50().eval().cuda()
    with torch.inference_mode():
        expected = model.double()(x.double())
    assert torch.equal(names["x"], x)
    assert (names["y"] - expected).norm() <= 1e-5 * expected.norm()


def test_single_calls_compute_what_torch_does():
    names = {}
    exec(CALLS, names)
    x, weight, bias = (names[name].double() for name in ("x", "weight", "bias"))
    expected = F.relu(F.conv2d(x, weight, bias, stride=2, padding=1))
    assert (names["y"] - expected).norm() <= 1e-6 * expected.norm()


def test_arrays_of_cupy_are_computed_alike():
    cupy = pytest.importorskip("cupy")
    (example,) = examples("docs/install.md")
    names = {}
    exec(example, names)
    x, weight = (torch.from_dlpack(names[name]).double() for name in ("x", "weight"))
    expected = F.relu(F.conv2d(x, weight, padding=1))
    assert isinstance(names["y"], cupy.ndarray)
    assert (torch.from_dlpack(names["y"]) - expected).norm() <= 1e-6 * expected.norm()
