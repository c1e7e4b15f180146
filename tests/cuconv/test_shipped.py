"""Kernels that ship compiled: found by name without NVRTC, not used where damaged or of another source."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from cuconv import shipped
from cuconv.algorithms import kernel_set
from cuconv.algorithms.common import finish_output
from cuconv.core.launch import KernelVariant
from cuconv.resources import ARCHITECTURES
from cuconv.runtime import compiler, launch_sequence

ARCH = "sm_90a"
SCALAR, VECTOR = finish_output.variants()
SHIPS, DOES_NOT = (KernelVariant.of(finish_output.SOURCE, ARCH, macros) for macros in (SCALAR, VECTOR))

WITHOUT_NVRTC = """
import sys
from pathlib import Path
sys.modules["cuda"] = sys.modules["cuda.bindings"] = None  # importing them fails
import cuconv
from cuconv import precompile, shipped
from cuconv.runtime import compiler, launch_sequence
from cuconv.algorithms.common import finish_output
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
from cuconv.precompile import compile_missing
shipped.FOLDER = Path(sys.argv[1])
cuconv.plan(cuconv.ConvProblem(1, 64, 14, 14, 64, 3, 3, 1, 1), H200)
scalar, vector = (KernelVariant.of(finish_output.SOURCE, H200.arch, macros) for macros in finish_output.variants())
assert compile_missing([scalar]) == 0
assert compiler.cubin(scalar).code.startswith(b"\\x7fELF")
assert not launch_sequence.is_available(vector, 0)
compile_missing([vector])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a zip with one of the two variants of finish_output ships; the compile cache is empty."""
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "first"))
    compiled = compiler.cubin(SHIPS)
    folder = tmp_path / "shipped"
    folder.mkdir()
    shipped.write(folder / f"{ARCH}.zip", [(compiler.variant_name(SHIPS), compiled)])
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    shipped._archive.cache_clear()
    yield folder
    shipped._archive.cache_clear()


def test_what_ships_is_neither_compiled_nor_cached(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "_compile", None)
    monkeypatch.setattr(compiler, "_compiler_version", None)
    assert launch_sequence.is_available(SHIPS, device=0)
    assert compiler.resources(SHIPS)[0].kernel == "finish_output"  # the report ships too
    assert not (tmp_path / "cache").exists()


def test_other_variants_and_architectures_are_compiled(folder, tmp_path):
    for kernel in (DOES_NOT, KernelVariant.of(finish_output.SOURCE, "sm_80", SCALAR)):
        assert compiler.find(kernel) is None
        assert compiler.cubin(kernel) == compiler.find(kernel)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_an_edited_source_does_not_match(folder, tmp_path):
    edited = tmp_path / finish_output.SOURCE.name
    edited.write_text(finish_output.SOURCE.read_text())
    assert compiler.find(KernelVariant.of(edited, ARCH, SCALAR)) is not None
    edited.write_text(finish_output.SOURCE.read_text() + "// edited\n")
    assert compiler.find(KernelVariant.of(edited, ARCH, SCALAR)) is None


@pytest.mark.parametrize("place", ["entry", "directory"])
def test_what_is_damaged_is_compiled(folder, place):
    path = folder / f"{ARCH}.zip"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 if place == "entry" else -10
    content[middle : middle + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert compiler.find(SHIPS) is None
    assert compiler.cubin(SHIPS).code.startswith(b"\x7fELF")


def test_another_architecture_is_found_in_a_package_of_its_own(folder, tmp_path, monkeypatch):
    kernel = KernelVariant.of(finish_output.SOURCE, "sm_80", SCALAR)
    package = tmp_path / "site" / "cuconv_sm_80"
    package.mkdir(parents=True)
    shipped.write(package / "sm_80.zip", [(compiler.variant_name(kernel), compiler.cubin(SHIPS))])
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert compiler.find(kernel) == compiler.cubin(SHIPS)


def test_equal_cubins_make_an_equal_zip(folder):
    path = folder / f"{ARCH}.zip"
    shipped.write(folder / "again.zip", [(compiler.variant_name(SHIPS), compiler.cubin(SHIPS))])
    assert (folder / "again.zip").read_bytes() == path.read_bytes()
    assert sorted(file.name for file in folder.iterdir()) == ["again.zip", f"{ARCH}.zip"]


def test_without_nvrtc_what_ships_works_and_the_rest_says_what_to_install(folder):
    command = [sys.executable, "-c", WITHOUT_NVRTC, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("cuconv.runtime.compiler.CompileError: ") and "pip install" in last, ended.stderr


def command(*arguments):
    """Run `python -m cuconv.precompile` in a process of its own, with a closed set of two variants."""
    code = (
        "import runpy; from cuconv.algorithms import kernel_set;"
        "from cuconv.algorithms.common import finish_output as a;"
        "from cuconv.core.launch import KernelVariant as K;"
        "kernel_set.variants = lambda arch: tuple(K.of(a.SOURCE, arch, macros) for macros in a.variants());"
        "runpy.run_module('cuconv.precompile', run_name='__main__', alter_sys=True)"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # no GPU
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=environment
    )


def test_the_command_compiles_once_and_writes_the_zip(folder, tmp_path):
    into = tmp_path / f"{ARCH}.zip"
    first = command("--arch", ARCH)
    assert first.returncode == 0, first.stderr
    assert "of which 2 were compiled" in first.stdout
    again = command("--arch", ARCH, "--into", into)
    assert (again.returncode, again.stderr) == (0, "")
    assert "of which 0 were compiled" in again.stdout
    names = {f"{compiler.variant_name(kernel)}.cubin" for kernel in (SHIPS, DOES_NOT)}
    assert set(ZipFile(into).namelist()) == names


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--arch", "volta"], "volta"),
        ([], "--arch"),
        (["--arch", ARCH, "sm_80", "--into", "x.zip"], "--into"),
        (["--arch", ARCH, "--into", "nowhere/x.zip"], "nowhere/x.zip"),
    ],
)
def test_the_command_refuses_bad_input(arguments, value):
    ended = command(*arguments)
    assert ended.returncode == 2
    assert value in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_set_has_each_variant_once_with_a_name_of_its_own(arch):
    variants = kernel_set.variants(arch)
    assert len({compiler.variant_name(variant) for variant in variants}) == len(variants)


def test_the_checkout_has_no_zip():
    assert not list(Path(shipped.__file__).parent.glob("*.zip"))
