"""Copies on the device: the bytes that they move, the way that counts, the CSV, and the times between sizes."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.errors import ResultsError
from harness.experiments.copies import measure as bandwidth
from harness.experiments.copies.measure import measurer, render
from harness.experiments.copies.rows import BANDWIDTH, Copy, copy_us, find, read
from harness.stopwatch.graph import HostTooSlow
from harness.stopwatch.timing import Timing, TooSlow
from tests.helpers import copies

CPU = torch.device("cpu")


def test_sizes_are_whole_pages_and_grow_by_the_root_of_two():
    sizes = bandwidth.SIZES
    assert sizes[0] == 1 << 20 and all(size % bandwidth.PAGE == 0 for size in sizes)
    assert np.diff(np.log2(sizes)) == pytest.approx([0.5] * (len(sizes) - 1), abs=0.01)


def test_a_dry_run_has_a_size_with_its_unit_on_each_line(capsys):
    assert bandwidth.main(["--dry-run"]) == 0
    sizes = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    expected = [size / bandwidth.MIB for size in bandwidth.SIZES]
    assert [float(mib) for mib, _ in sizes] == pytest.approx(expected, abs=0.1)
    assert {unit for _, unit in sizes} == {"MiB,"}


def test_half_of_the_bytes_are_read_and_half_written_and_the_faster_way_counts(monkeypatch):
    copied = []

    def timed(call, runs, device):
        source, target = call.args
        target.zero_()
        assert torch.equal(call(), source) and source.data_ptr() != target.data_ptr()
        assert source.is_contiguous() and target.is_contiguous() and source.dtype == target.dtype == torch.float32
        copied.append((source.nbytes, target.nbytes, runs))
        slower = len(copied) in (1, 4)  # the first way at the first size, the second at the second
        return Timing(tuple(slower + float(i) for i in range(1, runs + 1)), 1, "graph", target, call)

    monkeypatch.setattr(bandwidth.timing, "measure", timed)
    measure = measurer(CPU, [8192, 4096])
    found = [measure(8192), measure(4096)]
    assert copied == [(4096, 4096, 9)] * 2 + [(2048, 2048, 9)] * 2
    assert [one.way for one in found] == ["multiply", "copy"]
    assert list(BANDWIDTH.cells(found[1]).values()) == ["4096", "copy", *map(str, range(1, 10)), "5"]


def test_what_is_written_is_read_by_size(tmp_path):
    rows = [Copy(4096, "copy", (7.0,) * 9), Copy(1024, "multiply", (4 / 3,) * 9)]
    path = BANDWIDTH.write(tmp_path / "bandwidth", rows)
    assert path.read_text().splitlines()[1] == "4096,copy,7," + ",".join(["7"] * 9)
    back = read(path)
    assert list(back.bytes) == [1024, 4096] and list(back.mean_us) == [1.33333333, 7.0]


def test_the_command_says_where_it_measured(made_up_gpu, monkeypatch):
    monkeypatch.setattr(bandwidth, "measurer", lambda device: lambda size: Copy(size, "copy", (2.0,) * 9))
    assert bandwidth.main([]) == 0
    assert list(read(made_up_gpu / "bandwidth" / "bandwidth.csv").mean_us) == [2.0] * len(bandwidth.SIZES)
    (facts,) = json.loads((made_up_gpu / "bandwidth" / "environment.json").read_text())["environments"].values()
    assert facts["commands"][0]["command"] == "python -m harness copies"


@pytest.mark.parametrize("error", [TooSlow, HostTooSlow])
def test_a_copy_that_is_too_slow_is_told_and_the_file_stays(made_up_gpu, monkeypatch, capsys, error):
    measured = []

    def measure(size):
        measured.append(size)
        if size == bandwidth.SIZES[1]:
            raise error("one call takes 100.0 s")
        return Copy(size, "copy", (2.0,) * 9)

    path = BANDWIDTH.write(made_up_gpu / "bandwidth", [Copy(4096, "copy", (7.0,) * 9)])
    before = path.read_text()
    monkeypatch.setattr(bandwidth, "measurer", lambda device: measure)
    assert bandwidth.main([]) == 2
    assert "one call takes 100.0 s" in "".join(capsys.readouterr())
    assert measured == list(bandwidth.SIZES) and path.read_text() == before


def test_between_the_sizes_a_power_law_is_met_exactly():
    law = copies({size: 3.0 * size**0.7 for size in (1 << 10, 1 << 13, 1 << 20)})
    moved = [1 << 10, 1500, 1 << 13, 99_999, 1 << 20]
    assert copy_us(law, moved) == pytest.approx([3.0 * size**0.7 for size in moved], rel=1e-12)


def test_beyond_the_sizes_no_time_is_made_up():
    assert np.isnan(copy_us(copies({1024: 2.0, 4096: 4.0}), [1023, 4097])).all()


def test_table_counts_both_ways():
    assert render(copies({1 << 20: 2.0, 4 << 20: 4.0})).splitlines()[2:] == [
        "|            1.0 | 2.00 | 0.52 |",
        "|            4.0 | 4.00 | 1.05 |",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not readable as CSV"),
        ("bytes,mean_us\n1024,2\n", "lacks the column 'way'"),
        (",".join(BANDWIDTH.columns) + "\n", "must have rows"),
        (",".join(BANDWIDTH.columns) + "\n1024,copy" + ",0" * 10 + "\n", "more than 0"),
        (",".join(BANDWIDTH.columns) + "\n1024,copy" + ",1" * 9 + ",\n", "above 0"),
        (",".join(BANDWIDTH.columns) + "\n1024,copy" + ",x" * 10 + "\n", "not readable as CSV"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "bandwidth.csv"
    path.write_text(text)
    with pytest.raises(ResultsError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_compressed_file_is_found(tmp_path):
    path = BANDWIDTH.write(tmp_path / "bandwidth", [Copy(4096, "copy", (7.0,) * 9)])
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    found = find(tmp_path)
    assert found is not None and list(found.bytes) == [4096]


def test_a_file_that_is_missing_is_one_to_measure():
    with pytest.raises(ResultsError, match=r"measure first with 'python -m harness copies'"):
        read(Path("nowhere") / "bandwidth.csv")


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bandwidth.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "GPU" in captured.err and len(captured.err.splitlines()) == 1


def test_without_memory_it_says_how_much_it_needs(made_up_gpu, monkeypatch, capsys):
    def measurer(device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bandwidth, "measurer", measurer)
    assert bandwidth.main([]) == 2
    assert "copies need 4 GiB of the GPU's memory" in capsys.readouterr().err
