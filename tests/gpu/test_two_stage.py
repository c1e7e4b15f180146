"""The paper's algorithm at every variant and in every number of passes, whatever its heuristic would choose."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, reference
from cuconv.algorithms import two_stage
from cuconv.device import device_spec
from cuconv.jit import Launcher
from tests.gpu.problems import TOLERANCE, operands, pads, poisoned_output, rel_l2_error

PROBLEMS = [ConvProblem(5, 13, 11, 7, 19, k, k, k // 2, k // 2) for k in (1, 3)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("images_per_pass", [1, 2, 5])
@pytest.mark.parametrize("channels_per_pass", [1, 4, 13])
@pytest.mark.parametrize("threads", [32, 96, 256])
@pytest.mark.parametrize(("rows", "dots"), two_stage.REUSE)
def test_every_geometry(problem, images_per_pass, channels_per_pass, threads, rows, dots):
    spec = device_spec(0)
    config = replace(
        two_stage.configure(problem, spec),
        rows=rows,
        dots=dots,
        threads=threads,
        channels_per_pass=channels_per_pass,
        images_per_pass=images_per_pass,
    )
    x, weight = operands(problem)
    out = poisoned_output(problem)
    planes = torch.full((problem.filter_area * out.numel(),), torch.nan, device="cuda")
    launcher = Launcher(spec.arch, 0, torch.cuda.current_stream().cuda_stream)
    two_stage.launch(problem, config, launcher, *(t.data_ptr() for t in (x, weight, out, planes)))
    assert rel_l2_error(out, reference.conv2d(x, weight, pads(problem))) < TOLERANCE
