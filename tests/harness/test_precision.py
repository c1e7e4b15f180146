"""One precision for a process: NVIDIA's libraries are told it, and nothing measures in the other one."""

import os
import subprocess
import sys

import pytest

from harness import precision
from harness.contenders.base import load


def test_fp32_forbids_tf32_in_every_library_and_tf32_does_not():
    precision.set_for_process("tf32")
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ and precision.of_process() == "tf32"
    for forbidding in ("fp16", "fp32"):
        precision.set_for_process(forbidding)
        assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0" and precision.of_process() == forbidding


@pytest.mark.parametrize(
    ("module", "inherited"),
    [
        ("harness.precision", None),
        ("harness.precision", "0"),
        ("harness.precision", "1"),
        ("harness.contenders.base", "1"),
    ],
)
def test_a_process_computes_in_fp32_unless_told_otherwise(module, inherited):
    """Whatever the user's environment says. harness.contenders imports harness.precision, and torch, which is slow."""
    environment = {name: value for name, value in os.environ.items() if name != precision.OVERRIDE}
    environment |= {} if inherited is None else {precision.OVERRIDE: inherited}
    code = f"import os, {module}; print(os.environ['NVIDIA_TF32_OVERRIDE'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.parametrize(("one", "other"), [("fp32", "tf32"), ("tf32", "fp32")])
def test_a_process_of_one_precision_loads_no_contender_of_the_other(one, other):
    precision.set_for_process(one)
    assert load("cpu", one).precision == one
    with pytest.raises(RuntimeError, match=f"this process measures {one}: measure {other} in another"):
        load("cpu", other)
