"""Rows of cuConv of several codes, versions or machines are told below the tables that compare them."""

import json
from dataclasses import replace

import pytest

from harness.report.choice import algorithm_table, choice_table, losses_table
from harness.sweep.provenance import mixture, provenance
from tests.helpers import measured, row

ONE = {"gpu": "NVIDIA Test", "driver": "580", "code": "abc", "commit": "1", "commands": []}
REPORTS = {
    "one": ONE,
    "same": ONE | {"commit": "2", "cpu": "another"},
    "code": ONE | {"code": "def"},
    "driver": ONE | {"driver": "590"},
    "cudnn": ONE | {"cudnn": 92801},
}
MIXED = "Rows of auto are of other code, versions or machine than those of two_stage."


def results_of(tmp_path, rows):
    """The rows, with REPORTS in the environment.json of their folder."""
    results = measured(tmp_path, rows)
    (results.folder / "environment.json").write_text(json.dumps({"environments": REPORTS}))
    return results


def rows_of(auto, two_stage, fp16x3="one"):
    """One case of three algorithms, each with the name of its report."""
    names = {"auto": auto, "two_stage": two_stage, "fp16x3": fp16x3}
    return [row(name, 10.0, environment=names[name], detail="fp16x3 tile=1") for name in names]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (rows_of("one", "one"), ""),
        (rows_of("one", "same"), ""),
        (rows_of("one", "not in the file"), ""),
        (rows_of("one", "code"), MIXED),
        (rows_of("one", "driver"), MIXED),
        (rows_of("code", "one"), MIXED.replace("two_stage", "fp16x3, two_stage")),
        ([*rows_of("one", "one"), row("two_stage", 10.0, m=48, environment="code")], f"Some r{MIXED[1:]}"),
        ([row(batch=1, environment="one"), row(batch=8, environment="code")],
         "Rows of cuConv are of several codes, versions or machines."),
        ([row(environment="one"), row("gemm", provider="cudnn", environment="code")],
         MIXED.replace("two_stage", "cuDNN")),
        ([row(environment="one"), row("gemm", provider="cudnn", environment="same")], ""),
    ],
)  # fmt: skip
def test_rows_of_several_measurements_are_told(tmp_path, rows, sentence):
    results = results_of(tmp_path, rows)
    assert mixture(results, results.frame) == sentence


def test_without_reports_nothing_is_told(tmp_path):
    results = measured(tmp_path, rows_of("one", "code"))
    assert mixture(results, results.frame) == ""


def test_versions_are_of_all_contenders_but_optional_ones(tmp_path):
    ours, rival = row(environment="one"), row("gemm", provider="cudnn", environment="cudnn")
    optional = row("fast_fp32", provider="cutlass", environment="cudnn")
    assert provenance(results_of(tmp_path / "optional", [ours, optional])) == "NVIDIA Test"
    assert provenance(results_of(tmp_path / "rival", [ours, rival])) == "NVIDIA Test, cuDNN 9.28.1"


@pytest.mark.parametrize("table", [choice_table, losses_table, lambda results: algorithm_table(results, "fp16x3")])
def test_tables_of_the_choice_end_with_the_warning(tmp_path, table):
    assert table(results_of(tmp_path / "a", rows_of("one", "code"))).endswith(f"|\n\n{MIXED}")
    assert table(results_of(tmp_path / "b", rows_of("one", "same"))).endswith("|")


def test_a_table_of_one_precision_is_not_warned_of_the_other(tmp_path):
    tf32 = [replace(one, precision="tf32") for one in rows_of("code", "code", "code")]
    results = results_of(tmp_path, [*rows_of("one", "one"), *tf32])
    assert choice_table(results).endswith("|")
    assert losses_table(results).endswith("several codes, versions or machines.")
