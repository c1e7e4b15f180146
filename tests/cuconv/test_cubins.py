"""The compile cache: only whole files of trusted owners are read, and whatever is in the way, kernels can be kept."""

import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuconv.runtime import cubins
from cuconv.runtime.cubins import Cubin

ROOT = str(Path(cubins.__file__).parents[2])
CUBIN = Cubin(b"\x7fELF" + bytes(range(256)) * 8, "Used 32 registers, größer")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache that nothing was written to; every folder may be warned of again."""
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cubins, "_in_memory", {})
    cubins._warn.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def path(folder):
    """The file of a kernel in the cache."""
    cubins.write("kernel", CUBIN)
    path = folder / "kernel.cubin"
    assert cubins.read("kernel") == CUBIN and path.read_bytes().startswith(CUBIN.code)
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"\0" * len(whole),
        lambda whole: whole.replace(b"\x10\x11", b"\x10\x12"),
        lambda whole: CUBIN.code,
    ],
    ids=["empty", "a byte short", "half", "zeros", "a bit", "no checksum"],
)
def test_a_damaged_file_is_missing_until_it_is_written_again(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    assert cubins.read("kernel") is None
    cubins.write("kernel", CUBIN)
    assert cubins.read("kernel") == CUBIN


@pytest.mark.parametrize(
    ("umask", "of_file", "of_folder"), [(0o022, 0o644, 0o755), (0o002, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_the_umask_decides_who_reads_and_nobody_else_writes(folder, umask, of_file, of_folder):
    before = os.umask(umask)
    try:
        cubins.write("kernel", CUBIN)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (folder / "kernel.cubin", folder)]
    assert modes == [of_file, of_folder]


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_to_is_replaced(path, mode):
    path.chmod(mode)
    assert cubins.read("kernel") is None
    cubins.write("kernel", CUBIN)
    assert cubins.read("kernel") == CUBIN and path.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(("owner", "trusted"), [(7, True), (0, True), (8, False)])
@pytest.mark.parametrize("whose", ["file", "folder"])
def test_only_what_this_user_or_root_owns_is_read(path, monkeypatch, whose, owner, trusted):
    os.chown(path if whose == "file" else path.parent, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert (cubins.read("kernel") is not None) == trusted


@pytest.mark.parametrize("place", ["file/cache", "cache", "/dev/null/cuconv"])  # a file, others can write, no home
def test_kernels_are_kept_in_memory_with_one_warning_where_the_folder_cannot_be_used(folder, monkeypatch, place):
    (folder.parent / "file").write_text("")
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(folder.parent / place))
    with pytest.warns(UserWarning, match="CUCONV_CACHE_DIR") as warned:
        for name in ("kernel", "other"):
            cubins.write(name, CUBIN)
    assert len(warned) == 1
    assert cubins.read("kernel") == cubins.read("other") == CUBIN


def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch):
    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        cubins.write("kernel", CUBIN)
    assert cubins.read("kernel") == CUBIN and list(folder.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(path):
    left, written = path.with_suffix(".a.part"), path.with_suffix(".b.part")
    for part in (left, written):
        part.write_bytes(b"half")
    long_ago = time.time() - 2 * cubins.STALE_SECONDS
    os.utime(left, (long_ago, long_ago))
    cubins.write("other", CUBIN)
    assert not left.exists() and written.exists()


def test_beyond_the_limit_the_oldest_use_goes_first(folder, monkeypatch):
    for age, name in enumerate(("a", "b", "c")):
        cubins.write(name, CUBIN)
        used = time.time() - 100 + age
        os.utime(folder / f"{name}.cubin", (used, used))
    assert cubins.read("a") == CUBIN  # used again
    monkeypatch.setattr(cubins, "MAX_BYTES", 3 * (folder / "a.cubin").stat().st_size)
    cubins.write("d", CUBIN)
    assert sorted(path.stem for path in folder.iterdir()) == ["a", "c", "d"]


def test_writers_of_one_kernel_at_once_all_succeed(folder):
    with ThreadPoolExecutor(8) as threads, warnings.catch_warnings():
        warnings.simplefilter("error")
        list(threads.map(lambda _: cubins.write("kernel", CUBIN), range(64)))
    assert [path.name for path in folder.iterdir()] == ["kernel.cubin"]
    assert cubins.read("kernel") == CUBIN


def test_two_processes_that_compile_the_same_kernel_at_once_both_succeed(folder, tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text('extern "C" __global__ void kernel(float* x) { *x = 1; }')
    code = (
        "from pathlib import Path; from cuconv.core.launch import KernelVariant; from cuconv.runtime import compiler;"
        "print(compiler.cubin(KernelVariant.of(Path('kernel.cu'), 'sm_90a', {})).code)"
    )
    command, options = [sys.executable, "-W", "error", "-c", code], {"stdout": subprocess.PIPE, "cwd": tmp_path}
    running = [subprocess.Popen(command, **options, env=os.environ | {"PYTHONPATH": ROOT}) for _ in range(2)]
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert printed[0] == printed[1] and len(list(folder.iterdir())) == 1


def test_the_folder_is_set_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path))
    assert cubins.folder() == tmp_path
    monkeypatch.delenv("CUCONV_CACHE_DIR")
    assert cubins.folder() == Path.home() / ".cache" / "cuconv"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home
    assert cubins.folder() == Path(os.devnull, ".cache", "cuconv")
