"""The table of host times; expected numbers are worked out by hand."""

import pytest

from harness.errors import ResultsError
from harness.experiments.host.rows import HOST
from harness.experiments.host.table import host_table
from tests.harness.report.helpers import cells
from tests.helpers import GPU, measured, row

HEADER = "layer,provider,algorithm,output,calls,median_us\n"


def host_csv(root, text):
    path = root / GPU / "host" / HOST.name
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_host_times_beside_torch_and_on_how_many_layers_ours_cost_more(tmp_path):
    host_csv(
        tmp_path,
        HEADER
        + "7-1-1-8-16,cuconv,auto,new,2000,8.04\n7-1-1-8-16,cuconv,auto,given,2000,7.5\n"
        + "7-1-1-8-16,torch,default,new,2000,16.25\n"
        + "28-1-3-8-16,cuconv,auto,new,2000,13.0\n28-1-3-8-16,torch,default,new,2000,12.5\n",
    )
    table = host_table(measured(tmp_path, [row("auto", 10.0)]))
    assert cells(table)["7-1-1-8-16"] == ["8.0", "16.2"]
    assert cells(table)["28-1-3-8-16"] == ["13.0", "12.5"]
    assert table.endswith("On 1 of 2 layers a call of cuConv costs the host more than torch's.")


def test_first_calls_have_sentences_and_no_line(tmp_path):
    layer = "7-1-1-8-16,cuconv,auto,new,2000,8.04\n7-1-1-8-16,torch,default,new,2000,16.25\n"
    host_csv(tmp_path, HEADER + layer + "a new shape,cuconv,auto,new,400,1234.6\n")
    table = host_table(measured(tmp_path, [row("auto", 10.0)]))
    assert list(cells(table))[2:] == ["7-1-1-8-16"]
    assert table.endswith("The first call for a new shape, with its kernels at hand, costs the host 1,235 us.")


def test_without_host_times_a_sentence_says_what_to_run(tmp_path):
    assert "python -m harness host" in host_table(measured(tmp_path, [row("auto", 10.0)]))


def test_another_file_in_its_place_is_refused(tmp_path):
    host_csv(tmp_path, "batch,h\n1,2\n")
    with pytest.raises(ResultsError, match=r"host\.csv.*layer"):
        host_table(measured(tmp_path, [row("auto", 10.0)]))
