"""Conditions on a GPU: contenders compute on the memory that a rotation gives them, and all have rows."""

from functools import cache

import pytest
import torch

from cuconv import ConvProblem, reference
from harness.cases.catalogue import load_sweep
from harness.contenders.base import NotRunnable, Operands
from harness.experiments.conditions import measure as conditions
from harness.experiments.conditions.measure import RIVALS, Rotation, measure, on_operands
from harness.experiments.conditions.rows import CONDITIONS, OURS, ConditionTime
from harness.sweep.one_case import Options
from tests.gpu.problems import rel_l2_error

PROBLEM = ConvProblem(2, 16, 14, 14, 32, 3, 3, 1, 1)
WINOGRAD = 5e-3

entered = cache(on_operands)


@pytest.mark.parametrize("provider", [OURS[0], *RIVALS])
def test_a_prepared_call_computes_on_the_memory_of_each_copy(provider):
    operands = Operands.random(PROBLEM, torch.Generator("cuda").manual_seed(0))
    rotation = Rotation(operands, 3 * sum(one.nbytes for one in (operands.input, operands.weight, operands.output)))
    generator = torch.Generator("cuda").manual_seed(1)
    outputs = {output.data_ptr() for output in rotation.outputs}
    ran = 0
    for offer in entered(provider).offers(PROBLEM, operands):
        try:
            call = offer.prepare().call
            call()
        except NotRunnable:
            continue
        written = set()

        def checked(call=call, written=written):
            """Values that no other copy has: a call that reads or writes elsewhere is wrong."""
            operands.input.normal_(generator=generator)
            operands.weight.normal_(generator=generator)
            operands.output.fill_(torch.nan)
            output = call()
            expected = reference.conv2d(operands.input, operands.weight, **PROBLEM.geometry)
            assert rel_l2_error(output, expected) < WINOGRAD
            written.add(output.data_ptr())
            return output

        rotation.round(checked)
        assert provider == "torch" or written == outputs
        ran += 1
    assert len(rotation.outputs) == 3 and ran > 0


def test_each_condition_has_a_row_of_auto_and_of_a_rival(monkeypatch):
    monkeypatch.setattr(conditions, "LOAD_S", 0.05)
    (case,) = load_sweep("smoke", layers=["5a_5x5red"], batches=[2]).cases
    device = torch.device("cuda", torch.cuda.current_device())
    options = Options(device, (OURS[0], *RIVALS), None, 3, 0, 1 << 30, "")
    events = list(measure(case, {name: entered(name) for name in options.providers}, options, 1 << 23))
    rows = [event for event in events if isinstance(event, ConditionTime)]
    assert [row.condition for row in rows] == [condition for condition in CONDITIONS for _ in range(2)]
    assert [(row.provider, row.algorithm) == OURS for row in rows] == [True, False] * 3
    assert all(len(row.runs_us) == 3 and min(row.runs_us) > 0 for row in rows)
    assert [row.copies > 1 for row in rows] == [False] * 4 + [True] * 2
