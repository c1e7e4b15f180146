"""gemv: which layers it takes, its configurations and its launch."""

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.core.launch import BIAS, INPUT, OUTPUT, RESIDUAL, WEIGHT
from cuconv.device import A100, H200
from cuconv.select import plan

GEMV = ALGORITHMS["gemv"]
FULLY_CONNECTED = ConvProblem(4, 2048, 1, 1, 1000, 1, 1)


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem(1, 64, 2, 1, 10, 1, 1),
        ConvProblem(1, 64, 1, 1, 10, 1, 1, 1, 0),
        ConvProblem(1, 64, 1, 1, 10, 1, 1, groups=2),
        ConvProblem(1, 64, 3, 3, 10, 2, 2, dilation_h=2, dilation_w=2),
    ],
    ids=lambda problem: problem.label,
)
def test_other_layers_are_refused(problem):
    with pytest.raises(UnsupportedProblem, match="gemv is for filters as large as the input"):
        GEMV.configure(problem, H200)


def test_many_images_are_refused():
    with pytest.raises(UnsupportedProblem, match="65 images, the limit of gemv is 64"):
        GEMV.configure(ConvProblem(65, 64, 1, 1, 10, 1, 1), H200)


@pytest.mark.parametrize("device", [H200, A100])
@pytest.mark.parametrize("n", [1, 3, 8, 33])
@pytest.mark.parametrize("m", [1, 7, 1000])
def test_the_blocks_of_every_configuration_cover_all_outputs(device, n, m):
    problem = ConvProblem(n, 72, 1, 1, m, 1, 1)
    for config in GEMV.candidates(problem, device):
        tiles = -(-m // (config.filters * config.warps)) * -(-n // config.images)
        assert config.blocks == tiles
        assert config.threads == 32 * config.warps * config.split_k <= 1024


def test_configurations_print_differently():
    texts = [str(config) for config in GEMV.candidates(FULLY_CONNECTED, H200)]
    assert len(set(texts)) == len(texts)


def test_the_launch_passes_the_kernels_arguments():
    problem = ConvProblem(3, 16, 5, 7, 33, 5, 7)
    config = GEMV.configure(problem, H200)
    (launch,) = GEMV.launches(problem, config, CallOptions(relu=True))
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, 3, 16 * 35, 33, 1, 0)
    (with_residual,) = GEMV.launches(problem, config, CallOptions(relu=True, residual=True))
    assert with_residual.arguments == (*launch.arguments[:-1], RESIDUAL)
    assert with_residual.macros == launch.macros


@pytest.mark.parametrize(("channels", "aligned", "vector"), [(64, True, 4), (66, True, 1), (64, False, 1)])
def test_vector_loads_need_whole_and_aligned_rows(channels, aligned, vector):
    problem = ConvProblem(1, channels, 1, 1, 8, 1, 1)
    (launch,) = GEMV.launches(problem, GEMV.configure(problem, H200), CallOptions(aligned=aligned))
    assert launch.macros["VECTOR"] == vector


def test_auto_takes_it_for_one_image_and_tensor_cores_for_many():
    assert plan(ConvProblem(1, 2048, 1, 1, 1000, 1, 1), H200).algorithm == "gemv"
    assert plan(ConvProblem(64, 4096, 1, 1, 4096, 1, 1), H200).algorithm != "gemv"
