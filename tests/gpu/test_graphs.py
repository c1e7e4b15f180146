"""The example of docs/torch.md that keeps CUDA graphs of the last sizes: its results, and the memory that it keeps."""

import copy
import gc

import pytest
import torch

import cuconv.nn
from tests.docs.examples import examples

MOST = 3


@pytest.fixture
def graphs():
    """The example's class."""
    names = {}
    exec(next(code for code in examples("docs/torch.md") if "class Graphs" in code), names)
    return names["Graphs"]


def test_graphs_of_the_last_sizes_are_kept(graphs):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 1))
    model = model.eval().cuda()
    truth = copy.deepcopy(model).double()
    converted, _ = cuconv.nn.convert(model, torch.randn(1, 3, 32, 32, device="cuda"))
    keeping, kept = graphs(converted, MOST), []
    for size in (40, 37, 34, 31, 28, 25, 28, 40):  # the last but one has a graph, the last has none any more
        x = torch.randn(1, 3, size, size + 5, device="cuda")
        torch.testing.assert_close(keeping(x).double(), truth(x.double()), rtol=1e-4, atol=1e-4)
        assert list(keeping.graphs)[-1] == x.shape and len(keeping.graphs) <= MOST
        gc.collect()
        kept.append(torch.cuda.memory_allocated())
    assert max(kept[MOST:]) < 1.2 * kept[MOST - 1]
