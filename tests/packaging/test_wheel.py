"""The wheel works by itself: in an environment that has nothing else, outside of the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (".py", ".toml", ".cu", ".cuh")

USE = """
import importlib.util
import cuconv
from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200
from cuconv import jit

assert not any(importlib.util.find_spec(name) for name in ("harness", "tests", "torch", "cupy", "pandas"))
plan = cuconv.plan(cuconv.ConvProblem(1, 832, 7, 7, 256, 1, 1), H200)
algorithm = ALGORITHMS[plan.algorithm]
for launch in algorithm.launches(cuconv.ConvProblem(1, 832, 7, 7, 256, 1, 1), plan.config):
    print(jit.cubin(launch.source, H200.arch, launch.macros).code[:4])
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


def test_the_wheel_plans_and_compiles_in_an_empty_environment(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"{wheel}[cuda13]"], check=True)
    environment = {"CUCONV_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    used = subprocess.run([python, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert used.returncode == 0, used.stderr
    assert "ELF" in used.stdout
