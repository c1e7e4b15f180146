"""networks.csv, breakdown.csv and energy.csv: what is written, kept and replaced."""

from dataclasses import dataclass

import pytest

from harness.errors import ResultsError
from harness.experiments.networks.rows import (
    BREAKDOWN,
    ENERGY,
    NETWORKS,
    KernelsOfKind,
    NetworkEnergy,
    NetworkTime,
)
from harness.store.locked_folder import LockedFolder
from harness.store.table import StoredRows, Table
from tests.harness.experiments.networks.toy_networks import time

EXPECTED = (
    "network,source,batch,contender,precision,mode,status,detail,rel_l2_error,peak_memory_bytes,first_forward_s,"
    "run_1_us,run_2_us,run_3_us,run_4_us,run_5_us,run_6_us,run_7_us,run_8_us,run_9_us,mean_us,environment"
)


def write(folder, *rows):
    with LockedFolder(folder) as locked:
        stored = StoredRows(locked, [NETWORKS])
        for row in rows:
            stored.add([row], "e1")
    return folder / NETWORKS.name


def test_a_row_has_exactly_these_columns(tmp_path):
    path = write(tmp_path, time(10 / 3, rel_l2_error=1e-6, peak_memory_bytes=7, first_forward_s=0.5))
    lines = path.read_text().splitlines()
    assert lines[0] == EXPECTED == ",".join(NETWORKS.columns)
    runs = ",".join(["3.33333333"] * 10)
    assert lines[1:] == [f"resnet50,torchvision,1,cuconv,fp32,graph,ok,,1e-06,7,0.5,{runs},e1"]


def test_a_row_is_there_at_once_and_a_later_one_replaces_it(tmp_path):
    write(tmp_path, time(10.0), time(20.0, mode="eager"))
    with LockedFolder(tmp_path) as folder:
        stored = StoredRows(folder, [NETWORKS])
        stored.add([time(5.0)], "e2")
        assert list(NETWORKS.read(tmp_path / NETWORKS.name).mean_us) == [5.0, 20.0]
        assert stored.environments({"e0", "e1"}, {"e2"}) == {"e1", "e2"}


@pytest.mark.parametrize("other", [{"batch": 8}, {"precision": "tf32"}, {"source": "timm"}, {"contender": "torch"}])
def test_rows_of_other_keys_stay(tmp_path, other):
    assert len(NETWORKS.read(write(tmp_path, time(10.0), time(10.0, **other)))) == 2


def test_a_failed_row_has_its_reason_on_one_line_and_no_time(tmp_path):
    rows = NETWORKS.read(write(tmp_path, time(None, detail="a long\nreason")))
    assert rows.status[0] == "error" and rows.detail[0] == "a long reason"
    assert rows.mean_us.isna().all()


def test_times_and_status_go_together():
    with pytest.raises(ValueError, match="0 runs"):
        NetworkTime("resnet50", "torchvision", 1, "torch", "fp32", "graph", "ok")
    with pytest.raises(ValueError, match="at most 9"):
        NetworkTime("resnet50", "torchvision", 1, "torch", "fp32", "graph", "ok", runs_us=(1.0,) * 10)


def test_the_kernels_of_a_contender_replace_its_older_ones(tmp_path):
    def kind(name, us, contender="cuconv"):
        return KernelsOfKind("resnet50", 8, contender, "fp32", name, 2.0, us)

    with LockedFolder(tmp_path) as folder:
        for rows in (
            [kind("convolution", 9.0), kind("gemm", 1.0)],
            [kind("gemm", 2.0, "torch")],
            [kind("convolution", 8.5)],
        ):
            StoredRows(folder, [BREAKDOWN]).add(rows, "e1")
    assert (tmp_path / BREAKDOWN.name).read_text().splitlines() == [
        "network,batch,contender,precision,kind,kernels,us",
        "resnet50,8,cuconv,fp32,convolution,2,8.5",
        "resnet50,8,torch,fp32,gemm,2,2",
    ]


@dataclass(frozen=True)
class Newer:
    """A row whose files lacked `added` in an older version."""

    name: str
    added: int
    us: float


def test_a_file_of_an_older_version_is_written_with_the_columns_that_it_lacks(tmp_path):
    table = Table("toy", "newer.csv", Newer, "harness toy", absent={"added": "1"}, keys=("name",))
    (tmp_path / table.name).write_text("name,us\nold,5\nother,6\n")
    with LockedFolder(tmp_path) as folder:
        StoredRows(folder, [table]).add([Newer("other", 2, 7.0)], "e1")
    assert (tmp_path / table.name).read_text() == "name,added,us\nold,1,5\nother,2,7\n"


def test_a_file_with_more_runs_keeps_them(tmp_path):
    path = write(tmp_path, time(10.0, mode="eager"))
    path.write_text(path.read_text().replace("run_9_us,", "run_9_us,run_10_us,").replace(",10,e1", ",11,10,e1"))
    rows = NETWORKS.read(write(tmp_path, time(5.0)))
    assert rows.run_10_us.fillna(0).tolist() == [11.0, 0.0] and rows.mean_us.tolist() == [10.0, 5.0]


def test_an_energy_replaces_that_of_its_key_alone(tmp_path):
    def energy(mj, source="timm"):
        return NetworkEnergy("resnet50", source, 8, "cuconv", "fp32", 100, 2.5, mj, 400.0)

    with LockedFolder(tmp_path) as folder:
        StoredRows(folder, [ENERGY]).add([energy(9.0), energy(8.0, "torchvision")], "e1")
        StoredRows(folder, [ENERGY]).add([energy(12.5)], "e2")
    path = tmp_path / ENERGY.name
    written = path.read_text()
    assert written.splitlines() == [
        "network,source,batch,contender,precision,forwards,seconds,mj_per_image,mean_w,environment",
        "resnet50,timm,8,cuconv,fp32,100,2.5,12.5,400,e2",
        "resnet50,torchvision,8,cuconv,fp32,100,2.5,8,400,e1",
    ]
    path.write_text(written.replace("12.5", "0"))
    with pytest.raises(ResultsError, match="'mj_per_image': must be a finite number of more than 0"):
        ENERGY.read(path)


def test_a_folder_in_use_and_a_file_of_something_else_are_one_sentence(tmp_path):
    with LockedFolder(tmp_path), pytest.raises(ResultsError, match="in use by another run"):
        LockedFolder(tmp_path)
    path = tmp_path / NETWORKS.name
    path.write_text("a,b\n1,2\n")
    with LockedFolder(tmp_path) as folder, pytest.raises(ResultsError, match=r"networks\.csv has other columns"):
        StoredRows(folder, [NETWORKS])
    with pytest.raises(ResultsError, match=r"lacks the column 'network'.*no networks\.csv"):
        NETWORKS.read(path)
    with pytest.raises(ResultsError, match=r"python -m harness networks"):
        NETWORKS.read(tmp_path / "nowhere" / NETWORKS.name)


@pytest.mark.parametrize(("cell", "wrong"), [("eager", 'ea"ger,'), (",20,e1", ",0,e1")])
def test_a_damaged_line_stops_the_next_command_and_nothing_is_overwritten(tmp_path, cell, wrong):
    path = write(tmp_path, time(10.0), time(20.0, mode="eager"))
    path.write_text(damaged := path.read_text().replace(cell, wrong))
    with LockedFolder(tmp_path) as folder, pytest.raises(ResultsError, match="line 3"):
        StoredRows(folder, [NETWORKS])
    assert path.read_text() == damaged
