"""The evict-first policy of 1x1 convolutions, which follows from what they read and write."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.eviction import EIGHTHS, evict_first
from cuconv.device import H200, L2_BYTES


def layer(n, c, size, m, kernel=1):
    return ConvProblem(n, c, size, size, m, kernel, kernel, kernel // 2, kernel // 2)


def test_the_output_and_the_rest_of_the_input_fill_about_half_of_l2():
    for n in range(100, 280, 20):
        problem = layer(n, 512, 14, 24)
        kept = 4 * 14 * 14 * n * (24 + 512 * (1 - evict_first(problem) / EIGHTHS))
        assert 0.4 < kept / L2_BYTES < 0.7


@pytest.mark.parametrize(
    ("name", "problem", "has_policy"),
    [
        *((name, layer(128, 256, 27, 32), True) for name in ("fp16x3_pointwise", "tf32x3_wgmma")),
        ("fp16x3_pointwise", layer(32, 256, 27, 32), False),  # it fits in L2
        ("fp16x3_pointwise", layer(1024, 256, 27, 32), False),  # far beyond L2
        ("fp16x3_pointwise", layer(64, 64, 27, 256), False),  # it writes more than it reads
        ("tf32x3_wgmma", layer(64, 256, 27, 32, kernel=3), False),
    ],
    ids=str,
)
def test_kernels_of_1x1_filters_get_the_policy_where_l2_holds_a_part(name, problem, has_policy):
    algorithm = ALGORITHMS[name]
    config = algorithm.configure(problem, H200)
    _, macros = algorithm.forms(problem, config, CallOptions())[0]
    eighths = evict_first(problem) if has_policy else 0
    assert (macros["EVICT_FIRST"], algorithm.launches(problem, config)[-1].arguments[-1]) == (int(has_policy), eighths)
    assert not has_policy or 0 < eighths <= EIGHTHS
