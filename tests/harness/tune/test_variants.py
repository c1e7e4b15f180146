"""How the closed set's lists are chosen: what they promise of the layers holds, and the files say what was chosen."""

from math import log

import pytest

from cuconv import ConvProblem
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common import finish_output
from cuconv.algorithms.common.listed import listed
from harness.tune import variants
from harness.tune.variants import Asked, chosen, losses_of, times_of

LAYERS = [ConvProblem(n, c, 28, 28, 64, k, k, k // 2, k // 2) for n in (1, 32) for c in (64, 100) for k in (1, 3)]
CALLS = [Asked("paper fp32", problem, CallOptions(packed=packed)) for problem in LAYERS for packed in (False, True)]


def test_a_list_loses_no_more_than_its_limit():
    found = set(chosen(losses_of(CALLS)))
    losses = []
    for one in CALLS:
        times = times_of(one)
        least_us = min(us for variant, us in times.items() if variant is None or variant in found)
        losses.append(log(least_us / min(times.values())))
    assert 0 < len(found) < len({variant for one in CALLS for variant in times_of(one)}) / 10
    assert sum(losses) / len(losses) <= log(1 + variants.LIMITS["fp32"]["paper"])


def test_variants_that_are_kept_stay_where_a_call_gains_by_them():
    losses = losses_of(CALLS)
    first = chosen(losses)
    of_use, useless = first[-1], max(losses.of, key=lambda variant: losses.of[variant][1].min())
    found = chosen(losses, [of_use, useless, ("fp16x3", frozenset({("FILTERS", 7)}))])
    assert found[0] == of_use
    assert set(found) <= losses.of.keys() - {useless}


def test_a_list_takes_no_more_than_a_wheel_has(monkeypatch):
    monkeypatch.setattr(variants, "MOST_KIB", 100)
    found = chosen(losses_of(CALLS))
    kib = [variants.KIB.get(name, variants.LEAST_KIB) for name, _ in found]
    assert sum(kib[:-1]) < 100 <= sum(kib)


def test_random_layers_count_in_every_precision():
    groups = {one.group for one in variants.asked(0, ["fp32", "fp16"])}
    assert {f"{group} {precision}" for group in ("drawn", "large", "paper") for precision in ("fp32", "fp16")} <= groups


def test_the_kernel_that_adds_a_residual_counts():
    layer = ConvProblem(32, 128, 56, 56, 128, 3, 3, 1, 1)  # fp16x3_winograd, which leaves it to that kernel, is first
    options = (CallOptions(residual=added) for added in (False, True))
    plain, with_residual = (times_of(Asked("paper fp32", layer, one)) for one in options)
    winograd = {variant for variant in plain if variant and variant[0] == "fp16x3_winograd"}
    added_us = finish_output.predicted_us(layer)
    assert winograd and all(with_residual[one] == pytest.approx(plain[one] + added_us) for one in winograd)


def test_no_time_is_of_a_plan_that_auto_may_not_take(monkeypatch):
    one = Asked("paper fp32", LAYERS[-1], CallOptions())
    assert any(variant and variant[0] == "fp16x3" for variant in times_of(one))
    monkeypatch.setattr(variants, "MAX_WORKSPACE_BYTES", 0)
    assert not any(variant and variant[0] == "fp16x3" for variant in times_of(one))  # it packs its weights there


def test_a_file_lists_what_was_chosen(tmp_path):
    rows = [{"FILTERS": 16, "KH": 3}, {"FILTERS": 8}, {"FILTERS": 16, "KH": 0}]
    (tmp_path / "kernel.csv").write_text(variants.text_of(rows))
    assert sorted(listed(tmp_path / "kernel.cu"), key=str) == sorted(rows, key=str)
    assert variants.text_of(rows) == variants.text_of(rows[::-1])


def test_an_algorithm_without_a_variant_is_an_error():
    with pytest.raises(RuntimeError, match="fp16x3_winograd"):
        variants.write([("fp16x3", frozenset({("FILTERS", 8)}))], ["fp32"])
