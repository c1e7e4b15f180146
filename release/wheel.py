"""Build the wheel that ships a zip of compiled kernels: `python -m release.wheel build/sm_90a.zip`.

The zip of HOME goes into cuConv's own wheel. That of another architecture goes into a wheel that has nothing else, such
as cuconv_sm_80, which `cuconv.shipped` finds by its name. The source tree stays without a zip: wheels are built
from a copy.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
HOME = "sm_90a"  # the architecture whose kernels are part of cuConv's own wheel
MAX_MIB = 45  # of a wheel

KERNELS_ALONE = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "cuconv-{arch}"
version = "{version}"
description = "The kernels of cuConv, compiled for {arch}"
license = "Apache-2.0"
license-files = ["LICENSE"]

[tool.setuptools]
packages = ["cuconv_{arch}"]
package-data = {{ "cuconv_{arch}" = ["*.zip"] }}
"""


def main() -> None:
    """Build the wheel of a zip into a folder."""
    parser = argparse.ArgumentParser(prog="python -m release.wheel", description=__doc__, allow_abbrev=False)
    parser.add_argument("zip", type=Path, help="what 'python -m cuconv.precompile --into' wrote, called sm_90a.zip")
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist", metavar="FOLDER")
    chosen = parser.parse_args()
    if not chosen.zip.is_file():
        parser.error(f"{chosen.zip} is no file: 'python -m cuconv.precompile --into {chosen.zip}' writes it")
    mib = chosen.zip.stat().st_size / 2**20
    if mib > MAX_MIB:
        parser.error(f"{chosen.zip} has {mib:.1f} MiB: a wheel may have {MAX_MIB}")
    with TemporaryDirectory() as folder:
        project = Path(folder)
        package = _cuconv(project) if chosen.zip.stem == HOME else _kernels_alone(project, chosen.zip.stem)
        shutil.copy(chosen.zip, package)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", chosen.outdir.resolve()]
        built = subprocess.run([*build, project], capture_output=True, text=True)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)
    print(built.stdout.splitlines()[-1])


def _cuconv(project: Path) -> Path:
    """Copy cuConv into a folder; returns where the zip belongs."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    shutil.copytree(ROOT / "cuconv", project / "cuconv", ignore=shutil.ignore_patterns("__pycache__", "*.zip"))
    return project / "cuconv" / "shipped"


def _kernels_alone(project: Path, arch: str) -> Path:
    """Make a project of the kernels of an architecture in a folder; returns where the zip belongs."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (project / "pyproject.toml").write_text(KERNELS_ALONE.format(arch=arch, version=version))
    shutil.copy(ROOT / "LICENSE", project)
    package = project / f"cuconv_{arch}"
    package.mkdir()
    return package


if __name__ == "__main__":
    main()
