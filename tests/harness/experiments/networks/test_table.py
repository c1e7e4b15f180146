"""The table and the figure of whole networks; expected numbers are worked out by hand."""

from functools import partial

import pytest
from PIL import Image

from harness.experiments.networks.rows import NETWORKS, KernelsOfKind
from harness.experiments.networks.table import (
    DEFAULT,
    HALF,
    TORCH,
    beside,
    breakdown_table,
    engines_section,
    errors_section,
    half_section,
    modes_section,
    networks_results,
    networks_section,
    networks_table,
    paper_results,
)
from harness.report import pages, tables
from harness.report.figures import style
from harness.report.figures.command import main
from harness.report.figures.networks import draw_networks, networks_figure, speedups
from tests.harness.experiments.networks.toy_networks import time
from tests.harness.report.helpers import cells, collisions
from tests.helpers import GPU, SWEEP, row, write

# ResNet-50 at batch 1: channels_last is torch's best with 20 us; 20 / 8 = 2.5, with TF32 allowed 10 / 8 = 1.25.
# At batch 8 cuConv failed; at batch 32 it loses, 30 / 40 = 0.75, and nothing is known of TF32.
ROWS = [
    time(30.0, contender="torch"), time(20.0, contender="torch_channels_last"), time(25.0, contender="torch_compile"),
    time(8.0), time(1.0, mode="eager"), time(4.0, contender="cuconv_enabled"), time(5.0, precision="tf32"),
    time(10.0, contender="torch", precision="tf32"), time(None, contender="torch_compile", precision="tf32"),
    time(30.0, contender="torch", batch=8), time(None, batch=8),
    time(40.0, batch=32), time(30.0, contender="torch_compile", batch=32),
    time(10.0, network="vgg19"), time(40.0, network="vgg19", contender="torch"),
]  # fmt: skip


def fill(results, rows=ROWS):
    """Write networks.csv of the test's GPU, and return the folder results/DEVICE."""
    NETWORKS.write(results / GPU / "networks", rows)
    return results / GPU


@pytest.fixture
def device(tmp_path):
    return fill(tmp_path / "results")


def test_the_best_of_torch_in_a_graph_is_what_counts(device):
    of_fp32, of_tf32 = networks_table(networks_results(device).frame).split("\n\n**cuConv in TF32")
    assert of_fp32.startswith("**cuConv in FP32, torch in FP32.** ") and "`torch_channels_last` in 1, " in of_fp32
    table = cells(of_fp32)
    assert table["network"] == ["batch 1", "batch 32"]
    assert table["resnet50"] == ["2.50x (20/8)", "0.75x (30/40)"] and table["vgg19"] == ["4.00x (40/10)", "-"]
    mean = (2.5 * 0.75 * 4) ** (1 / 3)
    assert table[f"geometric mean; all: {mean:.2f}x, 2/3"] == [f"{10**0.5:.2f}x, 2/2", "0.75x, 0/1"]
    assert cells(of_tf32)["resnet50"] == ["2.00x (10/5)"]


def test_other_networks_leave_the_means_of_the_paper_s_as_they_are(tmp_path):
    others = [
        time(us, network=name, source=source, contender=who)
        for name, source in (("unet", "harness"), ("resnet50", "timm"), ("convnext_tiny", "torchvision"))
        for who, us in (("torch", 9.0), ("cuconv", 3.0))
    ]
    plain, mixed = fill(tmp_path / "plain"), fill(tmp_path / "mixed", [*others[:2], *ROWS, *others[2:]])
    measured = f"Measured on {GPU}."
    before, after = (networks_section(device, "plots").removesuffix(measured) for device in (plain, mixed))
    assert after.startswith(before)
    of_others = after.removeprefix(before)
    assert of_others.startswith("**Other networks: cuConv in FP32, torch in FP32.** ")
    assert "`torch` in 3." in of_others
    table = cells(of_others)
    assert table["network"] == ["batch 1"] and table["geometric mean; all: 3.00x, 3/3"] == ["3.00x, 3/3"]
    assert {name for name, values in table.items() if values == ["3.00x (9/3)"]} == {
        "unet", "timm:resnet50", "convnext_tiny",
    }  # fmt: skip
    for section in (modes_section, half_section, engines_section):
        assert section(mixed) == section(plain)
    assert len(speedups(paper_results(mixed).frame, TORCH)) == 3


def test_without_the_paper_s_networks_there_is_no_figure_of_them(tmp_path):
    device = fill(tmp_path, [time(3.0, network="unet", source="harness"),
                             time(9.0, network="unet", source="harness", contender="torch")])  # fmt: skip
    assert "unet" in networks_section(device, "plots") and "png" not in networks_section(device, "plots")
    assert draw_networks(device, tmp_path / "plots") is None
    assert "python -m harness networks" in modes_section(device)


def test_each_way_to_call_cuconv_is_compared_in_its_mode(tmp_path):
    rows = [*ROWS, time(3.0, mode="eager", contender="torch"), time(6.0, mode="eager", contender="cuconv_enabled")]
    device = fill(tmp_path, rows)
    NETWORKS.write(tmp_path / "another" / "networks", [time(5.0), time(4.0, contender="torch")])
    mean = (2.5 * 0.75 * 4) ** (1 / 3)
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in modes_section(device).splitlines()[2:]] == [
        ["cuconv", "graph", f"{mean:.2f}x, 2/3", "2.00x, 1/1", "0.80x, 0/1", "-"],
        ["cuconv", "eager", "3.00x, 1/1", "-", "-", "-"],
        ["cuconv_enabled", "graph", "5.00x, 1/1", "-", "-", "-"],
        ["cuconv_enabled", "eager", "0.50x, 0/1", "-", "-", "-"],
    ]
    assert "python -m harness networks" in modes_section(tmp_path / "nowhere" / GPU)


def test_cudnns_fastest_engines_are_beside_torch_and_none_of_it(tmp_path):
    engines = "torch_fastest_engines"
    rows = [*ROWS, time(16.0, contender=engines), time(5.0, contender=engines, mode="eager"),
            time(10.0, contender=engines, batch=32), time(9.0, contender=engines, batch=8)]  # fmt: skip
    table = cells(engines_section(fill(tmp_path, rows)))
    assert table["network"] == ["batch 1", "batch 32"] and "vgg19" not in table
    assert table["resnet50"] == ["2.00x (16/8)", "0.25x (10/40)"]
    assert f"geometric mean; all: {0.5**0.5:.2f}x, 1/2" in table
    assert "0.75x (30/40)" in networks_table(networks_results(tmp_path / GPU).frame), "engines are none of torch"
    assert engines_section(tmp_path / "another-gpu") == engines_section(tmp_path / GPU), "the table of any device"
    for without in (tmp_path / "no" / "where", fill(tmp_path / "other")):
        assert "--contender torch_fastest_engines cuconv" in engines_section(without)


def test_torch_in_half_precision_is_beside_cuconv_in_fp32(tmp_path):
    half = partial(time, precision="fp16")
    rows = [*ROWS, half(9.0, contender="torch"), half(6.0, contender="torch_frozen_channels_last"),
            half(5.0, contender="torch", batch=32), half(1.0, contender="torch", mode="eager")]  # fmt: skip
    section = half_section(fill(tmp_path, rows))
    assert cells(section)["resnet50"] == ["0.75x (6/8)", "0.12x (5/40)"] and "vgg19" not in section
    assert "`torch_frozen_channels_last` in 1, `torch` in 1." in section
    assert [case.speedup for case in beside(networks_results(tmp_path / GPU).frame, HALF)] == [0.75, 0.125]
    assert "--precision fp32 fp16" in half_section(tmp_path / "no" / "where")


def test_the_speedup_over_torch_by_case(device):
    found = beside(networks_results(device).frame, TORCH)
    assert [(case.network, case.batch, case.speedup) for case in found] == [
        ("resnet50", 1, 2.5), ("resnet50", 32, 0.75), ("vgg19", 1, 4.0),
    ]  # fmt: skip


def test_the_largest_error_of_each_network(tmp_path):
    rows = [
        time(1.0, rel_l2_error=1e-6), time(1.0, batch=8, rel_l2_error=3e-6),
        time(1.0, contender="torch", rel_l2_error=2e-7), time(1.0, contender="torch_compile", rel_l2_error=4e-7),
        time(1.0, contender="torch", precision="tf32", rel_l2_error=5e-4),
        time(1.0, contender="torch_frozen_channels_last", precision="fp16", rel_l2_error=6e-4),
    ]  # fmt: skip
    device = fill(tmp_path, rows)
    NETWORKS.write(tmp_path / "another" / "networks", [time(1.0, rel_l2_error=8e-6)])
    section = errors_section(device)
    assert cells(section)["resnet50"] == ["30.0", "4.0", "-", "0.5", "-", "0.6"], "in units of 1e-7 and of 1e-3"
    assert section.endswith(f"Measured on {GPU}."), "it has the most rows"
    assert "python -m harness networks" in errors_section(tmp_path / "nowhere" / GPU)


def test_nothing_to_compare_is_no_table(tmp_path):
    folder = fill(tmp_path, [time(10.0), time(20.0, contender="torch", mode="eager")])
    assert networks_table(networks_results(folder).frame) == ""
    assert draw_networks(folder, tmp_path / "plots") is None


def test_without_a_csv_nothing_is_drawn_and_a_page_says_what_to_run(tmp_path):
    assert networks_results(tmp_path / GPU) is None and draw_networks(tmp_path / GPU, tmp_path) is None
    assert networks_section(tmp_path / GPU, "plots") == (
        f"Not measured on {GPU}: measure first with 'python -m harness networks' on a GPU."
    )


def test_every_table_has_that_of_whole_networks_once_for_a_device(device, capsys):
    for sweep in ("paper", "full"):
        write(device.parent, SWEEP, sweep=sweep)
    command = ["--results", str(device.parent)]
    assert tables.main(command) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"## {GPU}, whole networks\n\n**cuConv in FP32") == 1
    assert tables.main([*command, "--sweep", "paper"]) == 0
    assert "whole networks" not in capsys.readouterr().out


def test_a_page_gets_the_figure_the_table_and_where_it_was_measured(device, tmp_path):
    write(device.parent, SWEEP)
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("<!-- table:networks -->\n<!-- table:end -->\n")
    assert pages.main([str(page), "--results", str(device.parent)]) == 0
    text = page.read_text()
    assert f"(../plots/{GPU}/networks/networks.png)" in text and f"Measured on {GPU}." in text
    assert "4.00x (40/10)" in text


def test_the_figure_is_drawn_beside_those_of_the_sweeps(device, tmp_path, capsys, texts_of):
    write(device.parent, [row("auto", 10.0), row("gemm", 30.0, provider="cudnn")])
    command = ["--results", str(device.parent), "--out", str(tmp_path / "plots")]
    folder = tmp_path / "plots" / GPU / "networks"
    assert main([*command, "--sweep", "paper"]) == 0 and not folder.exists()
    assert main(command) == 0
    assert capsys.readouterr().out.endswith(f"{folder / 'networks.png'}\n")
    drawn = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(drawn) == {"networks.png"}
    with Image.open(folder / "networks.png") as image:
        assert image.width == 9 * style.DPI and image.getpixel((0, 0)) is not None
    texts = texts_of(folder / "networks.png")
    assert {"resnet50", "cuConv, FP32", "cuConv, TF32", "fastest of torch, FP32"} <= set(texts)
    assert main(command) == 0
    assert drawn == {path.name: path.read_bytes() for path in folder.iterdir()}, "a redraw is the same bytes"


def test_more_networks_take_more_lines_and_no_text_is_smaller_than_seven_points(tmp_path):
    def figure(count):
        rows = [time(us, network=f"net{i}", contender=who)
                for i in range(count) for who, us in (("torch", 30.0), ("cuconv", 10.0))]  # fmt: skip
        return networks_figure(
            speedups(networks_results(fill(tmp_path / str(count), rows)).frame, TORCH), "caption", "torch in FP32"
        )

    six, seven = figure(6), figure(7)
    assert len(six.axes) == 1 and len(seven.axes) == 2 and seven.get_size_inches()[0] == 9
    assert seven.get_size_inches()[1] > 1.5 * six.get_size_inches()[1]
    assert not collisions(seven)
    texts = [*seven.texts, *(text for axes in seven.axes for text in (*axes.texts, *axes.get_xticklabels()))]
    assert min(text.get_fontsize() for text in texts) >= 7


def test_no_number_overlaps_a_bar(tmp_path):
    # With TF32 torch is faster, then slower: its bars, beside the numbers, are higher and lower than those of cuConv.
    contenders = (("torch", "fp32", 90.0), ("cuconv", "fp32", 20.0), ("cuconv", "tf32", 15.0))
    rows = [
        time(us, network=f"net{i % 5}", batch=1 + i // 5, contender=who, precision=precision)
        for i in range(15)
        for who, precision, us in (*contenders, ("torch", "tf32", 29.0 - i))
    ]
    results = networks_results(fill(tmp_path, rows))
    figure = networks_figure(speedups(results.frame, DEFAULT), "caption", "torch's default")
    assert len(figure.axes[0].patches) == 60 and not collisions(figure)


def test_the_table_of_kernels_by_kind():
    table = breakdown_table([KernelsOfKind("resnet50", 8, "cuconv", "fp32", "convolution", 53.0, 1234.56)])
    assert cells(table)["resnet50"] == ["8", "cuconv", "fp32", "convolution", "53", "1234.6"]
