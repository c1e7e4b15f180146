"""There is no GPU here: the kernels in the tree must be those that the last GPU run tested."""

import json

import pytest

from harness.results import environment, proof

PROOFS = sorted((environment.ROOT / "results").glob("*/verified.json"))


def test_there_is_a_proof():
    assert PROOFS, "no results/DEVICE/verified.json: run 'make test-gpu' on a GPU"


@pytest.mark.parametrize("path", PROOFS, ids=lambda path: path.parent.name)
def test_the_proof_is_current(path):
    changed = proof.outdated(path)
    few = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    assert not changed, f"changed since the GPU tests passed: {few}: run 'make test-gpu' on a GPU"


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
