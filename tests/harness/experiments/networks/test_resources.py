"""The tables of memory and energy; expected numbers are worked out by hand."""

from harness.experiments.networks.resources import energy_section, memory_section
from harness.experiments.networks.rows import ENERGY, NETWORKS, NetworkEnergy
from harness.report import pages
from tests.harness.experiments.networks.toy_networks import time
from tests.harness.report.helpers import cells
from tests.helpers import GPU, SWEEP, write

MIB = 2**20


def test_the_memory_of_torch_and_of_cuconv(tmp_path):
    rows = [
        time(1.0, contender="torch", peak_memory_bytes=100 * MIB), time(1.0, peak_memory_bytes=200 * MIB),
        time(1.0, contender="torch_compile", peak_memory_bytes=50 * MIB),
        time(1.0, contender="torch", precision="tf32", peak_memory_bytes=900 * MIB),
        time(1.0, contender="torch", batch=8, peak_memory_bytes=400 * MIB),
        time(1.0, batch=8, peak_memory_bytes=200 * MIB),
        time(1.0, batch=32, peak_memory_bytes=MIB), time(1.0, contender="torch", batch=32),
    ]  # fmt: skip
    NETWORKS.write(tmp_path / GPU / "networks", rows)
    table = cells(memory_section(tmp_path / GPU))
    assert table["resnet50 1"][1:] == ["100", "50", "200", "2.00x"]
    assert table["resnet50 8"][1:] == ["400", "-", "200", "0.50x"]
    assert "resnet50 32" not in table and table["geometric mean"][-1] == "1.00x"
    NETWORKS.write(tmp_path / GPU / "networks", rows[-2:])
    assert "python -m harness networks" in memory_section(tmp_path / GPU)


def energy(mj, contender="cuconv", precision="fp32", batch=1, network="resnet50", source="torchvision"):
    return NetworkEnergy(network, source, batch, contender, precision, 100, 2.5, mj, 400.0, "e1")


def test_the_energy_of_torch_over_that_of_cuconv(tmp_path):
    # ResNet-50: channels_last takes least, 400 / 100 = 4, and 92 / 80 = 1.15 in TF32. Of timm:x 30 / 60 = 0.5, and no
    # TF32. At batch 8 only cuConv was measured, and cuconv_enabled is no converted model. The mean is sqrt(4 * 0.5).
    rows = [
        energy(600.0, "torch"), energy(400.0, "torch_channels_last"), energy(100.0), energy(50.0, "cuconv_enabled"),
        energy(92.0, "torch_compile", "tf32"), energy(80.0, precision="tf32"), energy(70.0, batch=8),
        energy(60.0, network="x", source="timm"), energy(30.0, "torch", network="x", source="timm"),
    ]  # fmt: skip
    ENERGY.write(tmp_path / GPU / "networks", rows)
    section = energy_section(tmp_path / GPU)
    table = cells(section)
    assert section.endswith(f"Measured on {GPU}.") and "resnet50 8" not in table
    assert table["resnet50"] == [
        "1", "400.0", "torch_channels_last", "100.0", "4.00x", "92.0", "torch_compile", "80.0", "1.15x",
    ]  # fmt: skip
    assert table["timm:x"][1:] == ["30.0", "torch", "60.0", "0.50x", "-", "-", "-", "-"]
    assert table["geometric mean"] == ["", "", "", "", "1.41x", "", "", "", "1.15x"]


def test_the_table_of_energy_has_the_precisions_that_were_measured(tmp_path):
    rows = [energy(400.0, contender="torch"), energy(100.0)]
    ENERGY.write(tmp_path / GPU / "networks", rows)
    table = cells(energy_section(tmp_path / GPU))
    assert table["resnet50"] == ["1", "400.0", "torch", "100.0", "4.00x"]
    assert table["geometric mean"][-1] == "4.00x"


def test_a_page_without_energies_says_what_to_run(tmp_path):
    sentence = f"Not measured on {GPU}: measure first with 'python -m harness networks --energy' on a GPU."
    assert energy_section(tmp_path / GPU) == sentence
    ENERGY.write(tmp_path / GPU / "networks", [energy(60.0)])
    assert energy_section(tmp_path / GPU) == sentence, "nothing to compare"
    write(tmp_path, SWEEP)
    (page := tmp_path / "page.md").write_text("<!-- table:network_energy -->\n<!-- table:end -->\n")
    assert pages.main([str(page), "--results", str(tmp_path)]) == 0 and sentence in page.read_text()
