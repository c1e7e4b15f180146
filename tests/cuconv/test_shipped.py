"""Kernels that ship compiled: found by name without NVRTC, not used where damaged or of another source."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from cuconv import jit, kernel_set, shipped
from cuconv.algorithms.common import add_residual

ARCH = "sm_90a"
SCALAR, VECTOR = add_residual.variants()
SHIPS, DOES_NOT = (add_residual.SOURCE, ARCH, SCALAR), (add_residual.SOURCE, ARCH, VECTOR)

WITHOUT_NVRTC = """
import sys
from pathlib import Path
sys.modules["cuda"] = sys.modules["cuda.bindings"] = None  # importing them fails
import cuconv
from cuconv import jit, precompile, shipped
from cuconv.algorithms.common import add_residual
from cuconv.device import H200
from cuconv.precompile import compile_missing
shipped.FOLDER = Path(sys.argv[1])
cuconv.plan(cuconv.ConvProblem(1, 64, 14, 14, 64, 3, 3, 1, 1), H200)
scalar, vector = add_residual.variants()
assert compile_missing([(add_residual.SOURCE, H200.arch, scalar)]) == 0
assert jit.cubin(add_residual.SOURCE, H200.arch, scalar).code.startswith(b"\\x7fELF")
assert not jit.is_at_hand(add_residual.SOURCE, H200.arch, vector, 0)
compile_missing([(add_residual.SOURCE, H200.arch, vector)])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a zip with one of the two variants of add_residual ships; the compile cache is empty."""
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "first"))
    compiled = jit.cubin(*SHIPS)
    folder = tmp_path / "shipped"
    folder.mkdir()
    shipped.write(folder / f"{ARCH}.zip", [(jit.variant_name(*SHIPS), compiled)])
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    shipped._archive.cache_clear()
    yield folder
    shipped._archive.cache_clear()


def test_what_ships_is_neither_compiled_nor_cached(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "_compile", None)
    monkeypatch.setattr(jit, "_compiler_version", None)
    assert jit.is_at_hand(*SHIPS, device=0)
    assert jit.resources(*SHIPS)[0].kernel == "add_residual"  # the report ships too
    assert not (tmp_path / "cache").exists()


def test_other_variants_and_architectures_are_compiled(folder, tmp_path):
    for kernel in (DOES_NOT, (add_residual.SOURCE, "sm_80", SCALAR)):
        assert jit.find(*kernel) is None
        assert jit.cubin(*kernel) == jit.find(*kernel)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_an_edited_source_does_not_match(folder, tmp_path):
    edited = tmp_path / add_residual.SOURCE.name
    edited.write_text(add_residual.SOURCE.read_text())
    assert jit.find(edited, ARCH, SCALAR) is not None
    edited.write_text(add_residual.SOURCE.read_text() + "// edited\n")
    assert jit.find(edited, ARCH, SCALAR) is None


@pytest.mark.parametrize("place", ["entry", "directory"])
def test_what_is_damaged_is_compiled(folder, place):
    path = folder / f"{ARCH}.zip"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 if place == "entry" else -10
    content[middle : middle + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert jit.find(*SHIPS) is None
    assert jit.cubin(*SHIPS).code.startswith(b"\x7fELF")


def test_another_architecture_is_found_in_a_package_of_its_own(folder, tmp_path, monkeypatch):
    kernel = (add_residual.SOURCE, "sm_80", SCALAR)
    package = tmp_path / "site" / "cuconv_sm_80"
    package.mkdir(parents=True)
    shipped.write(package / "sm_80.zip", [(jit.variant_name(*kernel), jit.cubin(*SHIPS))])
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert jit.find(*kernel) == jit.cubin(*SHIPS)


def test_equal_cubins_make_an_equal_zip(folder):
    path = folder / f"{ARCH}.zip"
    shipped.write(folder / "again.zip", [(jit.variant_name(*SHIPS), jit.cubin(*SHIPS))])
    assert (folder / "again.zip").read_bytes() == path.read_bytes()
    assert sorted(file.name for file in folder.iterdir()) == ["again.zip", f"{ARCH}.zip"]


def test_without_nvrtc_what_ships_works_and_the_rest_says_what_to_install(folder):
    command = [sys.executable, "-c", WITHOUT_NVRTC, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1] == (
        "cuconv.jit.CompileError: cuConv has no compiled add_residual for sm_90a, and NVRTC, which compiles it, is not "
        "found: run 'pip install cuda-bindings nvidia-cuda-nvrtc' for CUDA 13 or "
        "'pip install \"cuda-bindings<13\" nvidia-cuda-nvrtc-cu12' for CUDA 12"
    ), ended.stderr


def command(*arguments):
    """Run `python -m cuconv.precompile` in a process of its own, with a closed set of two variants."""
    code = (
        "import runpy; from cuconv import kernel_set; from cuconv.algorithms.common import add_residual as a;"
        "kernel_set.variants = lambda arch: tuple((a.SOURCE, macros) for macros in a.variants());"
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
    assert "2 kernel variants, of which 2 were compiled" in first.stdout
    assert first.stderr.splitlines()[-1] == f"{ARCH}: compiled 2 of 2 kernel variants, 0:00 left"
    again = command("--arch", ARCH, "--into", into)
    assert (again.returncode, again.stderr) == (0, "")
    assert "of which 0 were compiled" in again.stdout
    names = {f"{jit.variant_name(*kernel)}.cubin" for kernel in (SHIPS, DOES_NOT)}
    assert set(ZipFile(into).namelist()) == names


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--arch", "volta"], "argument --arch: invalid choice: 'volta'"),
        ([], "no GPU is found: name an architecture, as with --arch sm_90a"),
        (["--arch", ARCH, "sm_80", "--into", "x.zip"], "--into takes one architecture, not sm_90a sm_80"),
        (["--arch", ARCH, "--into", "nowhere/x.zip"], "'nowhere/x.zip' must be a file that ends in .zip, in a folder"),
    ],
)
def test_the_command_refuses_bad_input(arguments, sentence):
    ended = command(*arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("arch", ["sm_80", ARCH, "sm_100"])
def test_every_variant_of_the_set_has_a_name_of_its_own(arch):
    variants = kernel_set.variants(arch)
    distinct = {(source, frozenset(macros.items())) for source, macros in variants}
    assert len({jit.variant_name(source, arch, macros) for source, macros in variants}) == len(distinct)


def test_the_checkout_has_no_zip():
    assert not list(Path(shipped.__file__).parent.glob("*.zip"))
