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
        time(1.0, contender="torch", precision="tf32", peak_memory_bytes=900 * MIB),
        time(1.0, contender="torch", batch=8, peak_memory_bytes=400 * MIB),
        time(1.0, batch=8, peak_memory_bytes=200 * MIB),
        time(1.0, batch=32, peak_memory_bytes=MIB), time(1.0, contender="torch", batch=32),
    ]  # fmt: skip
    NETWORKS.write(tmp_path / GPU / "networks", rows)
    table = cells(memory_section(tmp_path / GPU))
    assert table["network"] == ["batch 1", "batch 8"]
    assert table["resnet50"] == ["2.00x (200/100)", "0.50x (200/400)"]
    assert table["geometric mean; all: 1.00x"] == ["2.00x", "0.50x"]
    NETWORKS.write(tmp_path / GPU / "networks", rows[-2:])
    assert "python -m harness networks" in memory_section(tmp_path / GPU)


def energy(mj, contender="cuconv", precision="fp32", batch=1, network="resnet50", source="torchvision"):
    return NetworkEnergy(network, source, batch, contender, precision, 100, 2.5, mj, 400.0, "e1")


def test_the_energy_of_torch_over_that_of_cuconv(tmp_path):
    # ResNet-50: channels_last takes least, 400 / 100 = 4, and 92 / 80 = 1.15 in TF32. Of VGG19 30 / 60 = 0.5, and no
    # TF32. At batch 8 only cuConv was measured, and cuconv_enabled is no converted model. The mean is sqrt(4 * 0.5).
    rows = [
        energy(600.0, "torch"), energy(400.0, "torch_channels_last"), energy(100.0), energy(50.0, "cuconv_enabled"),
        energy(92.0, "torch_compile", "tf32"), energy(80.0, precision="tf32"), energy(70.0, batch=8),
        energy(60.0, network="vgg19"), energy(30.0, "torch", network="vgg19"),
    ]  # fmt: skip
    ENERGY.write(tmp_path / GPU / "networks", rows)
    section = energy_section(tmp_path / GPU)
    of_fp32, of_tf32 = section.split("In TF32:")
    assert section.startswith("In FP32:") and section.endswith(f"Measured on {GPU}.")
    table = cells(of_fp32)
    assert table["resnet50"] == ["4.00x (400.0/100.0)"] and table["vgg19"] == ["0.50x (30.0/60.0)"]
    assert table["geometric mean; all: 1.41x, 1/2"] == ["1.41x, 1/2"]
    assert cells(of_tf32)["resnet50"] == ["1.15x (92.0/80.0)"]


def test_the_table_of_energy_has_the_precisions_that_were_measured(tmp_path):
    rows = [energy(400.0, contender="torch"), energy(100.0)]
    ENERGY.write(tmp_path / GPU / "networks", rows)
    assert "4.00x (400.0/100.0)" in energy_section(tmp_path / GPU) and "TF32" not in energy_section(tmp_path / GPU)


def test_a_page_without_energies_says_what_to_run(tmp_path):
    sentence = f"Not measured on {GPU}: measure first with 'python -m harness networks --energy' on a GPU."
    assert energy_section(tmp_path / GPU) == sentence
    ENERGY.write(tmp_path / GPU / "networks", [energy(60.0)])
    assert energy_section(tmp_path / GPU) == sentence, "nothing to compare"
    write(tmp_path, SWEEP)
    (page := tmp_path / "page.md").write_text("<!-- table:network_energy -->\n<!-- table:end -->\n")
    assert pages.main([str(page), "--results", str(tmp_path)]) == 0 and sentence in page.read_text()
