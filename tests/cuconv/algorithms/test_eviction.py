"""What leaves the L2 cache first: by what a 1x1 layer reads and writes."""

import pytest

from cuconv.algorithms import tf32x3_presplit
from cuconv.algorithms.pointwise import fp16x3_pointwise
from cuconv.algorithms.common.implicit_gemm import tf32x3_stationary
from cuconv.algorithms.common.implicit_gemm import tf32x3_wgmma
from cuconv.algorithms.common.eviction import L2_BYTES, SHARES, evict_first
from cuconv.device import H200
from cuconv.problem import ConvProblem

ALGORITHMS = (fp16x3_pointwise, tf32x3_wgmma, tf32x3_presplit, tf32x3_stationary)


def layer(n, c, size, m):
    return ConvProblem(n, c, size, size, m, 1, 1)


def evicted(algorithm, problem):
    config = algorithm.configure(problem, H200)
    launches = algorithm.launches(problem, config, aligned=True, relu=False)
    return {launch.macros["EVICT_FIRST"] for launch in launches}


@pytest.mark.parametrize(
    ("problem", "eighths"),
    [
        (layer(32, 256, 27, 32), 0),  # it fits
        (layer(64, 256, 27, 32), 4),
        (layer(128, 256, 27, 32), 7),
        (layer(256, 256, 27, 32), 0),  # far beyond
        (layer(128, 256, 28, 128), 0),
        (layer(64, 256, 28, 128), 8),  # the output alone is what may stay
        (layer(64, 64, 27, 256), 0),  # it writes more than it reads
    ],
    ids=str,
)
def test_what_leaves_first_follows_from_what_the_cache_holds(problem, eighths):
    assert evict_first(problem) == eighths
    assert all(evicted(algorithm, problem) == {eighths} for algorithm in ALGORITHMS)


def test_output_and_what_stays_of_the_input_are_half_a_cache():
    for n in range(60, 120, 10):
        problem = layer(n, 512, 14, 24)
        stays = 4 * 14 * 14 * n * (24 + 512 * (1 - evict_first(problem) / SHARES))
        assert 0.4 < stays / L2_BYTES < 0.7 or not evict_first(problem)


def test_nothing_is_asked_of_the_cache_where_the_filter_is_larger():
    larger_filter = ConvProblem(64, 256, 27, 27, 32, 3, 3, 1, 1)
    assert evict_first(larger_filter) > 0
    assert all(evicted(algorithm, larger_filter) == {0} for algorithm in (tf32x3_wgmma, tf32x3_presplit))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.SOURCE.stem)
def test_variants_sample_what_may_leave_first(algorithm):
    assert {macros["EVICT_FIRST"] for macros in algorithm.variants("sm_90a")} == {0, 5}
