"""A layer of whole groups of channels takes the variant for any channels where no other is listed."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common import listed
from cuconv.device import H200

LAYER = ConvProblem(8, 64, 56, 56, 128, 3, 3, 1, 1)


@pytest.mark.parametrize("name", ["fp16x3", "fp16x3_winograd"])
@pytest.mark.parametrize(("whole_groups", "slowdown"), [({0}, listed.ANY_CHANNELS), ({1}, 1.0), ({0, 1}, 1.0)])
def test_the_fastest_variant_that_is_listed_runs(name, whole_groups, slowdown, monkeypatch):
    algorithm, options = ALGORITHMS[name], CallOptions()
    config = algorithm.configure(LAYER, H200)
    forms = [macros for _, macros in algorithm.forms(LAYER, config, options)]
    rows = {listed.variant_key(macros) for macros in forms if macros["WHOLE_GROUPS"] in whole_groups}
    monkeypatch.setattr(listed, "_rows", lambda source, varying: rows)
    assert algorithm.slowdown(LAYER, H200, config, options) == slowdown
    launched = algorithm.launches(LAYER, config, options)
    assert {launch.macros["WHOLE_GROUPS"] for launch in launched} == {max(whole_groups)}
