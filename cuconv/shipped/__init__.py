"""Kernels that ship compiled: for each architecture a zip of cubins, which `make wheel` writes.

The zip of Hopper lies in this folder. That of another architecture, such as sm_80, is in a distribution of its own,
whose package is called cuconv_sm_80. Without a zip, as in a checkout, a kernel is compiled when it is needed.

An entry is a file of the compile cache, with its checksum, compressed by xz: two thirds of what deflate makes of it, in
1 ms to read. It has the name that `cuconv.runtime.compiler` gives a kernel variant. The name covers the source, so an
edited source matches no entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile, ZipInfo
from zipimport import zipimporter

from cuconv.runtime import cubins
from cuconv.runtime.cubins import Cubin

FOLDER = Path(__file__).parent
OF_INSTRUCTIONS = {"lc": 0, "lp": 4, "pb": 4}  # options of xz: instructions have 16 bytes, so bytes 16 apart are alike


def read(arch: str, name: str) -> Cubin | None:
    """The cubin of this name that ships for an architecture; None where there is none, or where it is damaged.

    None, too, in a Python that was built without xz: its kernels are compiled.
    """
    archive = _archive(arch)
    if archive is None:
        return None
    try:
        from lzma import LZMAError, decompress
    except ImportError:
        return None
    try:
        return cubins.unpack(decompress(archive.get_data(_entry(name))))
    except (OSError, EOFError, ImportError, LZMAError):  # there is no such entry; the others are of damage
        return None


def write(path: Path, named: Iterable[tuple[str, Cubin]]) -> None:
    """Write a zip of cubins and their names. The same cubins make the same file, as all entries have one date."""
    import lzma

    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, **OF_INSTRUCTIONS}]
    part = path.with_name(f"{path.name}.part")
    try:
        with ZipFile(part, "w") as archive:
            for name, cubin in named:
                packed = lzma.compress(cubins.pack(cubin), check=lzma.CHECK_NONE, filters=filters)
                archive.writestr(ZipInfo(_entry(name)), packed)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@cache
def _archive(arch: str) -> zipimporter | None:
    """The zip of an architecture, with its directory read; None where there is none.

    A zipimporter opens the file again at each read. A ZipFile would keep it open, and threads and forked processes
    would share its position.
    """
    package = find_spec(f"cuconv_{arch}")
    others = package.submodule_search_locations if package else None
    for folder in (FOLDER, *map(Path, others or ())):
        path = folder / f"{arch}.zip"
        if path.is_file():
            try:
                return zipimporter(str(path))
            except ImportError:  # the file is no zip
                continue
    return None


def _entry(name: str) -> str:
    return f"{name}.cubin"
