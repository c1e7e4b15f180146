"""The tables of the paper: its networks, and its figures next to those of helpers.SWEEP."""

import shutil

from harness.cases import catalogue
from harness.report.paper import networks_table, paper_table
from tests.harness.report.helpers import cells
from tests.helpers import SWEEP, measured


def test_networks_table_has_the_paper_s_counts():
    table = networks_table()
    rows = cells(table)
    counts = dict(zip(rows[""], rows["distinct layers"], strict=True))
    assert counts == {"alexnet": "4", "googlenet": "42", "resnet50": "12", "squeezenet": "21", "vgg19": "9"}
    assert dict(zip(rows[""], rows["smallest input, at its deepest"], strict=True))["googlenet"] == "7x7x832"
    assert table.endswith("Together 86 distinct layers; with 7 batch sizes 602 configurations.")


def test_beside_the_paper(tmp_path):
    rows = cells(paper_table(measured(tmp_path, SWEEP)))
    assert rows[""] == ["paper (V100)", "cuConv auto", "cuConv two_stage"]
    assert rows["configurations won"] == ["50 of 602 (8.31%)", "3 of 7 (42.86%)", "0 of 7 (0.00%)"]
    assert rows["geometric mean of the speedup"] == ["-", "1.20x", "0.50x"]
    assert rows["mean speedup of the configurations won"] == ["1.46x", "3.00x", "-"]  # (3 + 2 + 4) / 3
    assert rows["1x1, batch 1: mean speedup"] == ["1.23x", "1.83x", "0.50x"]
    assert rows["1x1, batch 1: maximum"] == ["2.29x (7-32-832)", "3.00x (7-32-832)", "0.50x (7-32-832)"]
    assert rows["5x5, batch 1: mean speedup"] == ["1.36x", "-", "-"]
    assert rows["5x5, batch 1: maximum"] == ["1.97x", "-", "-"]


def test_a_network_without_layers_of_the_paper_leaves_the_table_as_it_is(tmp_path, monkeypatch):
    before, configs = networks_table(), tmp_path / "configs"
    shutil.copytree(catalogue.CONFIGS, configs)
    (configs / "networks" / "mine.yaml").write_text("layers:\n  - {name: stem, hw: 8, c: 3, m: 4, k: 3, pad: 1}\n")
    full = configs / "full.yaml"
    full.write_text(full.read_text().replace("networks: [", "networks: [mine, "))
    monkeypatch.setattr(catalogue, "CONFIGS", configs)
    monkeypatch.setattr(catalogue, "NETWORKS", configs / "networks")
    assert "mine" in catalogue.known_networks()
    assert networks_table() == before
