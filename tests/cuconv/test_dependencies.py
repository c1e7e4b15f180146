"""The library without its optional packages: it imports and plans, and what is missing is told in one sentence."""

import subprocess
import sys

import pytest

# What the benchmark needs, and CuPy, which only its own users need.
OPTIONAL = ["cupy", "torch", "pandas", "matplotlib", "pydantic", "yaml", "scipy", "tqdm", "nvtx", "pynvml"]
WITHOUT_THEM = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL}))\n"  # None: importing the module fails
PLAN = """
from cuconv.core.launch import KernelVariant
from cuconv import ConvProblem, plan
from cuconv.device import H200
print(plan(ConvProblem(1, 64, 14, 14, 64, 3, 3, 1, 1), {device}))
"""
NO_DRIVER = """
import ctypes
def refuse(name):
    raise OSError(f"{name}: cannot open shared object file")
ctypes.CDLL = refuse
"""
WITHOUT_IMPORTING_CUPY = """
import sys
class Refuse:
    def find_spec(name, path=None, target=None):
        if name == "cupy":
            sys.exit("CuPy is imported")
sys.meta_path.insert(0, Refuse)
import cuconv, cuconv.nn
"""
COMPILE_WITHOUT_NVRTC = """
from cuda.bindings import nvrtc
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.runtime import compiler
def version():
    raise RuntimeError("libnvrtc.so.13 not found")
nvrtc.nvrtcVersion = version
two_stage = ALGORITHMS["two_stage"]
compiler.cubin(KernelVariant.of(two_stage.source, "sm_90a", two_stage.variants("sm_90a")[0]))
"""


def run(code):
    """A new interpreter that runs code without the optional packages."""
    return subprocess.run([sys.executable, "-c", WITHOUT_THEM + code], capture_output=True, text=True, timeout=60)


def test_a_plan_for_a_described_gpu_needs_no_optional_package():
    result = run(PLAN.format(device="H200"))
    assert (result.returncode, result.stderr) == (0, "")
    assert "grid=" in result.stdout


def test_users_of_torch_do_not_wait_for_cupy():
    code = WITHOUT_IMPORTING_CUPY + PLAN.format(device="H200")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "grid=" in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("code", "error", "remedy"),
    [
        (NO_DRIVER + PLAN.format(device=None), "cuconv.runtime.driver.DriverError", "cuconv.device.H200"),
        ("from cuconv import reference", "ImportError", "pip install torch"),
        (COMPILE_WITHOUT_NVRTC, "cuconv.runtime.compiler.CompileError", "pip install cuda-bindings nvidia-cuda-nvrtc"),
    ],
    ids=["driver", "torch", "nvrtc"],
)
def test_a_missing_package_is_named_with_the_remedy(code, error, remedy):
    result = run(code)
    last = result.stderr.splitlines()[-1]
    assert result.returncode == 1 and last.startswith(f"{error}: ") and remedy in last
