"""The Conv cases of onnx, from the installed package, on conv2d."""

import os
import unittest.mock

import numpy
import pytest
import torch
import torch.nn.functional as F

from cuconv import conv2d, prepare
from tests.gpu.problems import rel_l2_error

onnx = pytest.importorskip("onnx", reason="onnx is of the extra 'test'")
onnx_cases = pytest.importorskip("onnx.backend.test.case.node.conv")

TOLERANCE = 3e-6
STORED = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "pytorch-converted")
MODELS = sorted(name for name in os.listdir(STORED) if name.startswith("test_Conv2d"))


def node_cases():
    """The cases of the operator Conv with two dimensions: (name, attributes, operands, result) of each."""
    found = []

    def expect(node, inputs, outputs, name):
        if inputs[0].ndim == 4:
            found.append((name, attributes(node), inputs, outputs[0]))

    # Not onnx's own collector: it makes the cases of every operator, and fails where one of them does.
    with unittest.mock.patch.object(onnx_cases, "expect", expect):
        for name in dir(onnx_cases.Conv):
            if name.startswith("export"):
                getattr(onnx_cases.Conv, name)()
    return found


def stored_case(name):
    """A stored model with one Conv node: its attributes, operands and result."""
    folder = os.path.join(STORED, name)
    graph = onnx.load(os.path.join(folder, "model.onnx")).graph
    (node,) = graph.node
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    inputs = [weights[name] if name in weights else _stored(folder, "input_0.pb") for name in node.input]
    return attributes(node), inputs, _stored(folder, "output_0.pb")


def _stored(folder, file):
    return onnx.numpy_helper.to_array(onnx.load_tensor(os.path.join(folder, "test_data_set_0", file)))


def attributes(node):
    """The attributes of a node by name."""
    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def convolved(given, inputs, compute):
    """The output of a Conv node; where padding differs from side to side, the input is padded before."""
    x, weight, *bias = (torch.from_numpy(numpy.array(array)).cuda() for array in inputs)
    strides, dilations = given.get("strides", [1, 1]), given.get("dilations", [1, 1])
    top, left, bottom, right = given.get("pads", [0] * 4)
    if (given.get("auto_pad") or b"NOTSET") not in (b"NOTSET", b"VALID"):
        totals = []
        for size, k, stride, dilation in zip(x.shape[2:], weight.shape[2:], strides, dilations, strict=True):
            totals.append(max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size))
        lower = given["auto_pad"] == b"SAME_LOWER"
        top, left = (total - total // 2 if lower else total // 2 for total in totals)
        bottom, right = totals[0] - top, totals[1] - left
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    options = {"stride": tuple(strides), "padding": (top, left), "dilation": tuple(dilations)}
    return compute(x, weight, bias[0] if bias else None, groups=given.get("group", 1), **options)


def prepared(x, weight, bias, **options):
    return prepare(weight, bias, **options)(x)


@pytest.mark.parametrize("compute", [conv2d, prepared])
def test_node_cases(compute):
    names = []
    for name, given, inputs, expected in node_cases():
        output = convolved(given, inputs, compute)
        assert output.shape == expected.shape, name
        assert rel_l2_error(output, torch.from_numpy(expected).cuda().double()) < TOLERANCE, name
        names.append(name)
    assert len(names) >= 6


@pytest.mark.parametrize("compute", [conv2d, prepared])
@pytest.mark.parametrize("name", MODELS)
def test_stored_models(name, compute):
    given, inputs, expected = stored_case(name)
    output = convolved(given, inputs, compute)
    assert output.shape == expected.shape
    assert rel_l2_error(output, torch.from_numpy(expected.copy()).cuda().double()) < TOLERANCE
