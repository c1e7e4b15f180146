"""conv2d refuses what it cannot compute before it looks for a GPU, in one sentence; plans need no GPU."""

import numpy as np
import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem
from cuconv.device import H200


def test_cpu_tensors_are_sent_to_the_gpu_or_the_reference():
    with pytest.raises(UnsupportedProblem, match=r"input is on cpu: .*cuconv\.reference"):
        cuconv.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1))


@pytest.mark.parametrize("value", [np.ones((1, 1, 3, 3), np.float32), [[1.0]], None])
def test_other_kinds_of_array(value):
    with pytest.raises(TypeError, match="torch CUDA tensors or CuPy arrays"):
        cuconv.conv2d(value, value)


def test_wrong_rank_names_the_layout():
    with pytest.raises(UnsupportedProblem, match=r"input has 3 dimensions \(1, 3, 3\): 4 are needed, NCHW"):
        cuconv.conv2d(torch.ones(1, 3, 3), torch.ones(1, 1, 1, 1))


def test_a_plan_prints_itself_and_its_workspace():
    problem = ConvProblem(n=1, c=192, h=7, w=7, m=384, kh=3, kw=3, pad_h=1, pad_w=1)
    plan = cuconv.plan(problem, H200)
    assert plan.algorithm in cuconv.algorithms()
    assert str(plan).startswith(plan.algorithm) and "grid=" in str(plan)
    assert cuconv.plan(problem, H200, "two_stage").workspace_bytes == 9 * 384 * 49 * 4


def test_auto_is_one_of_the_algorithms_for_any_shape():
    for shape in [(1, 1, 1, 1, 1, 1, 1), (3, 17, 65, 31, 5, 7, 7), (256, 64, 224, 224, 64, 3, 3)]:
        assert cuconv.plan(ConvProblem(*shape), H200).algorithm in cuconv.algorithms()


def test_unknown_algorithm_names_the_known_ones():
    with pytest.raises(ValueError, match="algorithm='magic': must be one of auto, two_stage"):
        cuconv.plan(ConvProblem(1, 1, 3, 3, 1, 1, 1), H200, "magic")
