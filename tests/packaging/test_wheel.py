"""The wheel works by itself: in an environment that has nothing else, outside of the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cuconv import shipped
from cuconv.algorithms.common import finish_output
from cuconv.core.launch import KernelVariant
from cuconv.runtime import compiler

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (".py", ".toml", ".csv", ".cu", ".cuh")

USE = """
import importlib.util
import cuconv
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
from cuconv.runtime import compiler

assert not any(importlib.util.find_spec(name) for name in ("harness", "tests", "torch", "cupy", "pandas"))
plan = cuconv.plan(cuconv.ConvProblem(1, 832, 7, 7, 256, 1, 1), H200)
algorithm = ALGORITHMS[plan.algorithm]
for launch in algorithm.launches(cuconv.ConvProblem(1, 832, 7, 7, 256, 1, 1), plan.config):
    print(compiler.cubin(launch.variant(H200.arch)).code[:4])
"""

USE_WHAT_SHIPS = """
import importlib.util
import cuconv
from cuconv.algorithms.common import finish_output
from cuconv.core.launch import KernelVariant
from cuconv.runtime import compiler

assert not any(importlib.util.find_spec(name) for name in ("cuda", "nvidia"))
for arch in ("sm_90a", "sm_80"):
    for macros in finish_output.variants():
        assert compiler.cubin(KernelVariant.of(finish_output.SOURCE, arch, macros)).code.startswith(b"\\x7fELF")
try:
    compiler.cubin(KernelVariant.of(finish_output.SOURCE, "sm_100", macros))
except compiler.CompileError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        # By way of the source distribution, which so is seen to be whole.
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_the_library_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"cuconv"}
    in_tree = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cuconv").rglob("*") if path.suffix in SHIPPED}
    in_tree.add("cuconv/py.typed")
    assert in_tree == {name for name in names if name.startswith("cuconv/")}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def empty_environment(folder, *requirements):
    """The interpreter of a new environment that has these requirements and what they need."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
    return python


def use(python, code, folder):
    """Run code in an environment with an empty compile cache; returns what it prints."""
    environment = {"CUCONV_CACHE_DIR": str(folder / "cache"), "PATH": "/usr/bin:/bin"}
    used = subprocess.run([python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert used.returncode == 0, used.stderr
    return used.stdout


def test_the_wheel_plans_and_compiles_in_an_empty_environment(wheel, tmp_path):
    python = empty_environment(tmp_path, f"{wheel}[cuda13]")
    assert "ELF" in use(python, USE, tmp_path)


def test_what_ships_needs_no_compiler(tmp_path):
    """Wheels of two variants for each of two architectures: cuConv's own, and the one that another is an extra of."""
    for arch in ("sm_90a", "sm_80"):
        kernels = [KernelVariant.of(finish_output.SOURCE, arch, macros) for macros in finish_output.variants()]
        shipped.write(
            tmp_path / f"{arch}.zip", [(compiler.variant_name(kernel), compiler.cubin(kernel)) for kernel in kernels]
        )
        command = [sys.executable, "-m", "release.wheel", tmp_path / f"{arch}.zip", "--outdir", tmp_path / "dist"]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("cuconv-*.whl")
    python = empty_environment(tmp_path, f"--find-links={tmp_path / 'dist'}", f"{wheel}[sm-80]")
    assert use(python, USE_WHAT_SHIPS, tmp_path).startswith("cuConv has no compiled finish_output for sm_100")
