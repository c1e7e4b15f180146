"""The options of a call in FP32: they are in the macros and arguments of its kernels, or in a kernel more."""

from dataclasses import replace

import pytest

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions
from cuconv.core.activation import RELU
from cuconv.core.launch import FLAGS, PACKED, RESIDUAL, WEIGHT
from cuconv.device import A100, H200
from tests.cuconv.algorithms.problems import TYPICAL, typical_problem

CASES = [(ALGORITHMS[name], typical_problem(name)) for name in offering("fp32")]
each_algorithm = pytest.mark.parametrize(
    ("algorithm", "problem", "config"),
    [(one, problem, one.configure(problem, H200)) for one, problem in CASES],
    ids=offering("fp32"),
)


@each_algorithm
@pytest.mark.parametrize("aligned", [True, False])
def test_a_residual_is_added_once(algorithm, problem, config, aligned):
    launches = algorithm.launches(problem, config, CallOptions(aligned, activation=RELU, residual=True))
    *others, last = launches
    assert [RESIDUAL in launch.arguments for launch in launches] == [False] * len(others) + [True]
    assert (last.kernel == "finish_output") is not (algorithm.fuses_residual and aligned)
    if last.kernel == "finish_output":
        assert tuple(others) == algorithm.launches(problem, config, CallOptions(aligned))  # without ReLU
        assert last.arguments[-2:] == (RELU.kind, RELU.packed_numbers) and last.overlap


def test_a_gpu_without_dependent_launch_adds_a_residual_without_it():
    algorithm, problem = ALGORITHMS["two_stage"], TYPICAL
    options = CallOptions(residual=True, overlap=A100.has_dependent_launch)
    assert not algorithm.launches(problem, algorithm.configure(problem, A100), options)[-1].overlap


@each_algorithm
def test_packed_weights_are_read_where_there_are_any(algorithm, problem, config):
    options = CallOptions(packed=True, residual=True)
    launches, once = (make(problem, config, options) for make in (algorithm.launches, algorithm.packing_launch))
    assert (once is None) == (algorithm.packing(problem, config) is None)
    if once is None:
        assert launches == algorithm.launches(problem, config, replace(options, packed=False))
    else:
        (main,) = [launch for launch in launches if PACKED in launch.arguments]
        assert main.arguments[-2:] == (PACKED, FLAGS) and main.macros == once.macros and main.macros["PREPARED"] == 1
        assert once.arguments[:2] == (WEIGHT, PACKED) and once.arguments[-1] == 0  # it clears no flags
        plain = algorithm.launches(problem, config, replace(options, packed=False))
        assert [one.kernel for one in plain] == ["pack_weights", *(one.kernel for one in launches)]
        (same,) = [one for one in plain if one.kernel == main.kernel]
        assert (main.blocks, main.threads, main.shared_bytes) == (same.blocks, same.threads, same.shared_bytes)


@each_algorithm
@pytest.mark.parametrize("more", [2, 3])
def test_slices(algorithm, problem, config, more):
    if not algorithm.writes_slices:
        pytest.skip("it writes to no slices")
    odd = replace(problem, h=problem.h - 1, w=problem.w - 1) if problem.out_h > 1 else problem
    config = config if odd == problem else algorithm.configure(odd, H200)
    channels = odd.m + more
    aligned = channels * odd.out_pixels % 4 == 0
    launches = algorithm.launches(odd, config, CallOptions(output_channels=channels))
    plain = algorithm.launches(odd, config, CallOptions(aligned))
    changed = 0
    for launch, other in zip(launches, plain, strict=True):
        pairs = [pair for pair in zip(launch.arguments, other.arguments, strict=True) if pair[0] != pair[1]]
        assert launch.macros == other.macros and len(pairs) <= 1
        for pair in pairs:  # of planes or of floats
            assert pair in ((channels, odd.m), (channels * odd.out_pixels, odd.m * odd.out_pixels))
        changed += len(pairs)
    assert changed == 1, "the last kernel alone is told where images begin"
