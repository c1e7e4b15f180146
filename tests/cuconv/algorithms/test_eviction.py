"""The evict-first policy of 1x1 convolutions, which follows from what they read and write."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.eviction import EIGHTHS, evict_first
from cuconv.device import H200, L2_BYTES

# The algorithms whose 1x1 kernels read the input as it lies, in large problems.
WITH_THE_POLICY = ["fp16x3_pointwise", "tf32x3_wgmma"]


def layer(n, c, size, m):
    return ConvProblem(n, c, size, size, m, 1, 1)


def policy(name, problem):
    """Whether an algorithm's main kernel may be compiled with the policy for a problem, and its argument in eighths."""
    algorithm = ALGORITHMS[name]
    config = algorithm.configure(problem, H200)
    _, macros = algorithm.forms(problem, config, CallOptions())[0]
    return macros["EVICT_FIRST"], algorithm.launches(problem, config)[-1].arguments[-1]


@pytest.mark.parametrize(
    ("problem", "eighths"),
    [
        (layer(32, 256, 27, 32), 0),  # it fits in L2
        (layer(64, 256, 27, 32), 4),
        (layer(128, 256, 27, 32), 7),
        (layer(256, 256, 27, 32), 0),  # far beyond L2
        (layer(128, 256, 28, 128), 0),
        (layer(64, 256, 28, 128), 8),  # the output alone fills what may stay
        (layer(64, 64, 27, 256), 0),  # it writes more than it reads
    ],
    ids=str,
)
def test_the_policy_follows_from_what_l2_holds(problem, eighths):
    assert evict_first(problem) == eighths
    assert all(policy(name, problem) == (int(eighths > 0), eighths) for name in WITH_THE_POLICY)


def test_the_output_and_the_rest_of_the_input_fill_about_half_of_l2():
    for n in range(60, 120, 10):
        problem = layer(n, 512, 14, 24)
        kept = 4 * 14 * 14 * n * (24 + 512 * (1 - evict_first(problem) / EIGHTHS))
        assert 0.4 < kept / L2_BYTES < 0.7 or not evict_first(problem)


def test_larger_filters_keep_the_policy_of_the_cache():
    larger_filter = ConvProblem(64, 256, 27, 27, 32, 3, 3, 1, 1)
    assert evict_first(larger_filter) > 0
    assert policy("tf32x3_wgmma", larger_filter) == (0, 0)
