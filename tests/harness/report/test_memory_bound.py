"""Memory-bound layers compared with copies; expected numbers are worked out by hand."""

from cuconv.core.problem import ConvProblem
from harness.cases.catalogue import load_sweep
from harness.experiments.copies import rows as bandwidth
from harness.experiments.copies.measure import SIZES
from harness.report.memory_bound import LEAST_BATCH, depthwise_table, memory_bound_table
from harness.sweep.comparisons import is_memory_bound
from tests.harness.report.helpers import cells
from tests.helpers import GPU, copies, measured, row


def test_memory_bounds_few_channels_and_pointwise_layers_with_few_filters():
    bound = {case.problem.label for case in load_sweep("paper", batches=[16]).cases if is_memory_bound(case.problem)}
    assert {"224-16-3-64-3", "56-16-1-64-64", "55-16-1-16-96"} <= bound
    assert len(bound) == 26 and not any("-5-" in label for label in bound)


def test_copies_are_measured_of_as_many_bytes_as_every_memory_bound_case_of_the_paper_moves():
    cases = [case for case in load_sweep("paper").cases if case.batch >= LEAST_BATCH and is_memory_bound(case.problem)]
    moved = [case.problem.min_bytes for case in cases]
    assert SIZES[0] <= min(moved) and max(moved) <= SIZES[-1]


def test_memory_bound_layers_as_shares_of_a_copy_of_as_many_bytes(tmp_path):
    plane = {"h": 56, "w": 56, "c": 64}
    rows = [
        row("auto", 50.0, batch=16, m=64, **plane), row("auto", 125.0, batch=32, m=64, **plane),
        row("auto", 400.0, batch=16, m=256, **plane), row("auto", status="error", batch=32, m=256, **plane),
        row("auto", 9.0, batch=64, m=64, **plane), row("auto", 9.0, batch=64, m=256, **plane),  # m=256: beyond
        row("auto", 9.0, batch=8, m=64, **plane),  # a small batch
        row("auto", 9.0, batch=16, m=64, k=3, **plane), row("two_stage", 1.0, batch=16, m=64, **plane),
    ]  # fmt: skip
    copied = [(16, 64, 50.0), (32, 64, 100.0), (16, 256, 200.0), (64, 64, 6.0), (32, 256, 300.0)]
    times = {ConvProblem(batch, 64, 56, 56, m, 1, 1).min_bytes: us for batch, m, us in copied}
    path = bandwidth.BANDWIDTH.path(tmp_path / GPU)
    path.parent.mkdir(parents=True)
    copies(times).to_csv(path, index=False)
    table = memory_bound_table(measured(tmp_path, rows))
    assert "80% or more on 2 of 5 cases" in table
    found = cells(table)
    assert found["filter"] == ["plane", "layers", "16", "32", "64"]
    assert found["1x1"] == ["56x56", "2", "71%", "80%", "67%"]  # the root of 1 * 0.5; alone, as is the last
    assert found["80% or more"] == ["all", "2", "1 of 2", "1 of 2", "0 of 1"]
    assert len(found) == 4  # with header and rule: neither the small batch nor the 3x3 layer is there


def test_without_copies_the_command_is_told(tmp_path):
    assert "harness copies" in memory_bound_table(measured(tmp_path, [row("auto", 10.0, batch=16)]))


def test_no_memory_bound_case_no_table(tmp_path):
    for rows in ([row("auto", 10.0, batch=8)], [row("gemm", 10.0, provider="cudnn", batch=16)]):
        assert memory_bound_table(measured(tmp_path / rows[0].algorithm, rows)) == ""


def test_depthwise_layers_beside_copies(tmp_path):
    layer = {"h": 112, "w": 112, "c": 32, "m": 32, "k": 3, "groups": 32}
    rows = [
        row("auto", 50.0, batch=8, **layer), row("auto", 50.0, batch=32, **layer),
        row("auto", 1.0, batch=1, **layer),  # too small
        row("auto", 1.0, batch=32, **(layer | {"groups": 4})),  # not depthwise
    ]  # fmt: skip
    moved = {batch: ConvProblem(batch, 32, 112, 112, 32, 3, 3, 1, 1, groups=32).min_bytes for batch in (8, 32)}
    results = measured(tmp_path, rows)
    assert "were not measured on gpu" in depthwise_table(results, "gpu") and "on gpu" in depthwise_table(None, "gpu")
    path = bandwidth.BANDWIDTH.path(tmp_path / GPU)
    path.parent.mkdir(parents=True)
    copies({moved[8]: 20.0, moved[32]: 45.0}).to_csv(path, index=False)
    table = depthwise_table(results, "gpu")
    assert "70% or more on 1 of 2 cases" in table
    assert cells(table)["3x3"] == ["60% (2)", "60% (2)"]  # (0.4 * 0.9) ** 0.5
