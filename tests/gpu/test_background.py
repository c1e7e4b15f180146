"""New shapes in a process with few compiled kernels: results are right before, while and after others compile."""

import os
import subprocess
import sys

import pytest

# A layer's kernels are compiled for 56x56 alone. Convolving 23x37 then finds kernels that are slower, or none.
BEGIN = """
import torch
import cuconv, cuconv.nn
from cuconv import ConvProblem, precompile

torch.manual_seed(0)
torch.set_grad_enabled(False)
weight, bias = torch.randn(64, 64, 3, 3, device="cuda") / 24, torch.randn(64, device="cuda")
x, y = torch.randn(2, 64, 56, 56, device="cuda"), torch.randn(1, 64, 23, 37, device="cuda")

def truth(x):
    return torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), padding=1).relu()

def check(result, x):
    error = (result.double() - truth(x)).norm() / truth(x).norm()
    assert error < 1e-6, error
"""
PLAIN = """
for packed in (False, True):
    precompile([ConvProblem(2, 64, 56, 56, 64, 3, 3, 1, 1)], prepared=packed)
    layer = cuconv.prepare(weight, bias, padding=1, relu=True)
    call = layer if packed else lambda x: cuconv.conv2d(x, weight, bias, padding=1, relu=True)
    for _ in range(2):
        check(call(x), x)
        check(call(y), y)
    cuconv.wait_for_kernels()
    for _ in range(2):
        check(call(y), y)
"""
GRAPH = """
precompile([ConvProblem(2, 64, 56, 56, 64, 3, 3, 1, 1)], prepared=True)
layer = cuconv.prepare(weight, bias, padding=1, relu=True)
layer(x), layer(y)
torch.cuda.synchronize()
graphs = []
for wait in (False, True):
    if wait:
        cuconv.wait_for_kernels()
        layer(y)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layer(y)
    graphs.append((graph, result))
for _ in range(3):
    for graph, result in graphs:
        result.zero_()
        graph.replay()
        check(result, y)
"""
MODEL = """
model = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU()).cuda().eval()
model[0].weight.data.copy_(weight), model[0].bias.data.copy_(bias)
converted, report = cuconv.nn.convert(model, x)
assert report.captured
for _ in range(2):
    check(converted(x), x)
    check(converted(y), y)
cuconv.wait_for_kernels()
check(converted(y), y)
with cuconv.nn.enabled():
    check(model(y), y)
"""


@pytest.mark.parametrize("code", [PLAIN, GRAPH, MODEL], ids=["plain", "graph", "model"])
def test_results_of_new_shapes(code, tmp_path):
    environment = {**os.environ, "CUCONV_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", BEGIN + code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
