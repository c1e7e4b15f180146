"""Without a GPU, the kernels that changed since the last GPU run are told, and a release with them is refused."""

import json
import runpy
import warnings
from types import SimpleNamespace

import pytest

from harness.store import environment, proof
from tests.gpu.conftest import all_passed


def test_kernels_without_a_proof_are_a_warning():
    """`make release-check` fails on them; kernels in the tree may wait for their proof."""
    for complaint in proof.complaints():
        warnings.warn(complaint, stacklevel=1)


def test_the_release_check_fails_on_kernels_without_a_proof(tmp_path, monkeypatch):
    def release_check():
        with pytest.raises(SystemExit) as exit:
            runpy.run_path(proof.__file__, run_name="__main__")
        return exit.value.code

    monkeypatch.setattr(environment, "ROOT", tmp_path)
    kernel = tmp_path / "cuconv" / "two_stage.cu"
    kernel.parent.mkdir()
    kernel.write_text("int stages = 2;\n")
    assert release_check() == "There is no results/DEVICE/verified.json: run 'make test-gpu' on a GPU"
    path = tmp_path / "results" / "nvidia-test" / "verified.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"files": proof.current_files()}))
    assert release_check() is None
    for i in range(6):
        kernel.with_stem(f"kernel{i}").write_text("int stages = 3;\n")
    files = ", ".join(f"cuconv/kernel{i}.cu" for i in range(5))
    assert release_check() == (
        f"changed since the GPU tests passed on nvidia-test: {files} and 1 more: run 'make test-gpu' on it"
    )


def test_a_changed_kernel_is_noticed(tmp_path):
    files = proof.current_files()
    edited = files | {"cuconv/algorithms/two_stage/two_stage.cu": "0" * 64, "cuconv/gone.py": "1" * 64}
    path = tmp_path / "verified.json"
    path.write_text(json.dumps({"files": edited}))
    assert proof.outdated(path) == ["cuconv/algorithms/two_stage/two_stage.cu", "cuconv/gone.py"]
    path.write_text(json.dumps({"files": files}))
    assert proof.outdated(path) == []


def test_words_need_no_new_proof_and_an_instruction_does(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    kernel = tmp_path / "cuconv" / "two_stage.cu"
    kernel.parent.mkdir()
    kernel.write_text("int stages = 2;  // of the paper\n")
    path = tmp_path / "verified.json"
    path.write_text(json.dumps({"files": proof.current_files()}))
    kernel.write_text("// The paper has two.\nint stages = 2;\n")
    assert proof.outdated(path) == []
    kernel.write_text("int stages = 3;  // of the paper\n")
    assert proof.outdated(path) == ["cuconv/two_stage.cu"]


def reports(*names):
    return [SimpleNamespace(nodeid=f"tests/gpu/{name}") for name in names]


@pytest.mark.parametrize(
    ("outcomes", "proves"),
    [
        ({"passed": ["test_conv.py::a", "harness/test_timing.py::b"]}, True),
        ({"passed": ["test_conv.py::a"], "failed": ["harness/test_timing.py::b"]}, True),
        ({"passed": ["test_conv.py::a"], "skipped": ["harness/test_optional_contenders.py::b"]}, True),
        ({"passed": ["test_conv.py::a"], "failed": ["test_tf32.py::b"]}, False),
        ({"passed": ["test_conv.py::a"], "error": ["test_tf32.py::b"]}, False),
        ({"passed": ["test_conv.py::a"], "skipped": ["test_tf32.py::b"]}, False),
        ({"passed": ["test_conv.py::a"], "deselected": ["test_tf32.py::b"]}, False),
        ({"passed": ["harness/test_timing.py::b"]}, False),
    ],
    ids=str,
)
def test_the_proof_takes_every_test_of_the_library_and_none_of_the_benchmark(outcomes, proves):
    assert all_passed({outcome: reports(*names) for outcome, names in outcomes.items()}) is proves
