"""The tensors of a case in the type and the order in memory that a contender wants."""

import pytest
import torch

from cuconv.core.problem import ConvProblem
from harness.contenders.base import LAYOUTS, PLAIN, Operands
from harness.contenders.registry import PROVIDERS

PROBLEM = ConvProblem(2, 3, 5, 4, 6, 3, 3, 1, 1)


@pytest.fixture
def operands():
    return Operands.random(PROBLEM, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layout", dict.fromkeys(layout for every in LAYOUTS.values() for layout in every), ids=str)
def test_copies_have_the_values_in_another_type_and_order(operands, layout):
    mine = operands.laid_out(layout)
    for ours, theirs in ((mine.input, operands.input), (mine.weight, operands.weight)):
        assert torch.equal(ours, theirs.to(layout.dtype))
        order = torch.channels_last if layout.channels_last else torch.contiguous_format
        assert ours.is_contiguous(memory_format=order)
    assert mine.output.shape == PROBLEM.output_shape and mine.output.dtype == layout.dtype
    if layout == PLAIN:
        assert mine is operands
    else:
        assert mine.input.data_ptr() != operands.input.data_ptr()


def test_channels_last_has_algorithms_of_its_own():
    modes = ("default", "benchmark", "deterministic")
    for precision in LAYOUTS:
        assert PROVIDERS["torch"].algorithms_in(precision) == (*modes, *(f"{mode}_nhwc" for mode in modes))
    assert PROVIDERS["cudnn_engine"].may_have("eng3_k1=2_nhwc", "fp16")
    assert PROVIDERS["cuconv"].may_have("auto_nhwc", "tf32") and not PROVIDERS["cuconv"].may_have("auto_nhwc", "fp32")
