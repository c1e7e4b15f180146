"""gemv: which layers it takes, its configurations and its launch."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.device import A100, H200
from cuconv.select import plan

GEMV = ALGORITHMS["gemv"]
FULLY_CONNECTED = ConvProblem(4, 2048, 1, 1, 1000, 1, 1)


@pytest.mark.parametrize("device", [H200, A100])
@pytest.mark.parametrize("n", [1, 3, 8, 33])
@pytest.mark.parametrize("m", [1, 7, 1000])
def test_the_blocks_of_every_configuration_cover_all_outputs(device, n, m):
    problem = ConvProblem(n, 72, 1, 1, m, 1, 1)
    for config in GEMV.candidates(problem, device):
        tiles = -(-m // (config.filters * config.warps)) * -(-n // config.images)
        assert config.blocks == tiles
        assert config.threads == 32 * config.warps * config.split_k <= 1024


def test_auto_takes_it_for_one_image_and_tensor_cores_for_many():
    assert plan(ConvProblem(1, 2048, 1, 1, 1000, 1, 1), H200).algorithm == "gemv"
    assert plan(ConvProblem(64, 4096, 1, 1, 4096, 1, 1), H200).algorithm != "gemv"
