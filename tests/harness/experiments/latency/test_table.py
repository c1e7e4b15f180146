"""The tables of latency.csv, from made-up rows; expected numbers are worked out by hand."""

import json

import pytest

from harness.errors import ResultsError
from harness.experiments.latency.rows import LATENCY, Latency
from harness.experiments.latency.table import latency_sizes, latency_starts
from harness.store.locked_folder import LockedFolder
from harness.store.table import StoredRows
from tests.helpers import GPU, measured, row

NOT_MEASURED = "Not measured on nvidia-test: measure first with 'python -m harness latency' on a GPU."


def sizes(network, contender, cache, first, again):
    """Rows whose second calls take ten times as long as later ones."""
    return [
        Latency("size", network, contender, cache, 100 + number, 200, one, 10 * other, other, environment="e1")
        for number, (one, other) in enumerate(zip(first, again, strict=True))
    ]


@pytest.fixture
def results(tmp_path):
    """Results of a device, whose folder of latencies stands next to its sweep."""
    return measured(tmp_path, [row("auto", 10.0)])


def write(results, *rows):
    with LockedFolder(results.folder.parent / "latency") as folder:
        StoredRows(folder, [LATENCY]).add(rows, "e1")


def test_percentiles_of_first_results_and_the_median_of_further_ones(results):
    write(
        results,
        *sizes("resnet18", "cuconv", "full", [5.0], [0.5]),
        *sizes("resnet18", "cuconv", "empty", [40.0, 10.0, 30.0, 20.0, 50.0], [1.0, 9.0, 2.0, 8.0, 3.0]),
        *sizes("resnet18", "torch", "-", [4.0, 2.0], [1.5, 2.5]),
        *sizes("timm:resnet26d", "torch", "-", [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]),
    )
    # Sorted 10 20 30 40 50: 90% of the four steps are 3.6, so 40 + 0.6 * 10 = 46. Of 2 and 4: 2 + 0.9 * 2 = 3.8.
    lines = latency_sizes(results).splitlines()
    body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    assert body == [
        ["resnet18", "torch", "-", "2", "3.00", "3.80", "4.00", "25.00", "2.00"],
        ["resnet18", "cuConv", "empty", "5", "30.00", "46.00", "50.00", "90.00", "3.00"],
        ["resnet18", "cuConv", "full", "1", "5.00", "5.00", "5.00", "5.00", "0.50"],
        ["timm:resnet26d", "torch", "-", "3", "2.00", "2.80", "3.00", "3.00", "0.20"],
    ]


def test_starts_are_medians_in_seconds_beside_convert(results):
    write(
        results,
        *(Latency("start", "resnet50", "torch", "-", 224, 224, ms) for ms in (3000.0, 9000.0, 4000.0)),
        *(Latency("start", "resnet50", "cuconv", "full", 224, 224, ms) for ms in (5000.0, 6000.0)),
        Latency("convert", "resnet50", "cuconv", "empty", 224, 224, 61234.0),
        Latency("convert", "resnet50", "cuconv", "full", 224, 224, 2500.0),
        *sizes("resnet18", "torch", "-", [4.0], [1.0]),
    )
    lines = latency_starts(results).splitlines()
    body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    assert body == [
        ["resnet50", "torch", "-", "4.00", "3", "-"],
        ["resnet50", "cuConv", "empty", "-", "-", "61.23"],
        ["resnet50", "cuConv", "full", "5.50", "2", "2.50"],
    ]


def test_the_machine_and_the_day_stand_below(results):
    write(results, *sizes("resnet18", "torch", "-", [4.0], [1.0]))
    facts = {"gpu": "NVIDIA Test", "torch": "2.11.0", "commands": [{"date": "2026-01-02T03:04:05+00:00"}]}
    path = results.folder.parent / "latency" / "environment.json"
    path.write_text(json.dumps({"environments": {"e1": facts}}))
    assert latency_sizes(results).endswith("\n\nMeasured on NVIDIA Test, torch 2.11.0, 2026-01-02.")


def test_without_rows_a_sentence_says_what_to_run(results):
    assert latency_sizes(results) == latency_starts(results) == NOT_MEASURED
    write(results, *sizes("resnet18", "torch", "-", [4.0], [1.0]))
    assert latency_sizes(results) != NOT_MEASURED == latency_starts(results)


def test_another_file_in_its_place_is_refused(results, tmp_path):
    path = tmp_path / GPU / "latency" / LATENCY.name
    path.parent.mkdir()
    path.write_text("batch,h\n1,2\n")
    with pytest.raises(ResultsError, match=r"latency\.csv lacks the column 'what'"):
        latency_sizes(results)
