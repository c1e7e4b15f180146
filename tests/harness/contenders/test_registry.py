"""The registry: every algorithm of the library takes part, and name, order and colour are complete."""

import subprocess
import sys

import pytest

from cuconv.algorithms import ALGORITHMS
from harness.contenders.registry import CHOICES, COLOURS, PROVIDERS, comparison, family, shown


def test_every_algorithm_of_the_library_takes_part_after_its_own_choice():
    names = PROVIDERS["cuconv"].algorithms
    chosen = len(CHOICES)
    assert names[:chosen] == CHOICES and names[-1] == "two_stage"
    assert sorted(names[chosen:]) == sorted(ALGORITHMS)


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda provider: provider.name)
def test_every_algorithm_has_a_colour_and_a_family_of_that_colour(provider):
    for algorithm in provider.algorithms or ("eng0_k2=1",):
        colour = provider.colour_of(algorithm)
        assert len(colour) == 7 and colour.startswith("#")
        assert COLOURS[family(provider.name, algorithm)] == colour


def test_families():
    assert {family("cuconv", name) for name in PROVIDERS["cuconv"].algorithms} == {"cuconv"}
    assert family("cudnn", "fft") == "fft" and family("torch", "benchmark") == "torch"
    assert family("cpu", "two_stage") == "cuconv", "on a CPU the paper's two stages stand for cuConv"
    assert family("cuconv", "an_algorithm_of_older_rows") == "cuconv"


def test_an_algorithm_is_shown_with_its_provider():
    assert shown("cudnn", "winograd") == "cuDNN winograd"


@pytest.mark.parametrize(
    ("device", "rivals", "others"),
    [
        ("cpu", [("cpu", "onednn"), ("cpu", "fft")], [("cpu", "two_stage"), ("cudnn", "gemm")]),
        (
            "nvidia-h200",
            [("cudnn", "gemm"), ("cudnn_engine", "eng3"), ("torch", "default")],
            [("cublas", "bmm"), ("cutlass", "fast_fp32")],
        ),
    ],
)
def test_rivals(device, rivals, others):
    ours = comparison(device)
    assert all(ours.is_rival(*pair) for pair in rivals)
    assert not any(ours.is_rival(*pair) for pair in others)
    assert not any(ours.is_rival(ours.provider, subject) for subject in ours.subjects)


def test_what_reads_csv_files_needs_no_torch():
    modules = ["cases.catalogue", "contenders.registry", "store.environment", "store.proof", "sweep.comparisons"]
    modules += [f"experiments.{name}.rows" for name in ("accuracy", "copies", "latency", "networks")]
    imports = "; ".join(f"import harness.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", f"{imports}; import sys; assert 'torch' not in sys.modules"], check=True)
