"""Compile every kernel that "auto" may launch on a GPU, once, into the compile cache; no GPU is needed.

`python -m cuconv.precompile` does so for the current GPU, and with --arch for others. With --into it writes the kernels
to a zip, which `make wheel` ships.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cuconv import shipped
from cuconv.algorithms import kernel_set
from cuconv.device import UnsupportedDevice, device_spec
from cuconv.precompile import compile_missing
from cuconv.runtime import compiler, cubins, driver

ARCHITECTURES = tuple(f"sm_{number}" for number in (80, 86, 87, 89, "90a", 100, 103, 110, 120, 121))
SECONDS_BETWEEN_LINES = 30  # on a stderr that is not a terminal


def main() -> None:
    """Compile the closed set of each chosen architecture, or write that of one to a zip."""
    parser = argparse.ArgumentParser(prog="python -m cuconv.precompile", description=__doc__)
    parser.add_argument(
        "--arch", nargs="+", choices=ARCHITECTURES, metavar="sm_90a", help="default: that of the current GPU"
    )
    parser.add_argument("--into", type=_zip, metavar="FILE.zip", help="write the kernels of one architecture to a zip")
    chosen = parser.parse_args()
    try:
        architectures = chosen.arch or [_arch_of_this_gpu()]
        if chosen.into and len(architectures) > 1:
            raise argparse.ArgumentTypeError(f"--into takes one architecture, not {' '.join(architectures)}")
    except (argparse.ArgumentTypeError, UnsupportedDevice) as error:
        parser.error(str(error))
    try:
        for arch in architectures:
            _precompile(arch, chosen.into)
    except (compiler.CompileError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")


def _precompile(arch: str, into: Path | None) -> None:
    kernels = kernel_set.variants(arch)
    compiled = compile_missing(kernels, _progress(arch))
    print(f"{arch}: {len(kernels)} kernel variants, of which {compiled} were compiled into {cubins.folder()}")
    if into:
        named = {compiler.variant_name(kernel): kernel for kernel in kernels}
        shipped.write(into, ((name, compiler.cubin(named[name])) for name in sorted(named)))
        print(f"{into}: {into.stat().st_size / 2**20:.1f} MiB")


def _progress(arch: str) -> Callable[[int, int], None]:
    """A callback that writes to stderr how many kernels are compiled, and the time left at the same rate."""
    started, terminal = time.monotonic(), sys.stderr.isatty()
    due = started

    def progress(done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now < due and done < total:
            return
        due = now + (0 if terminal else SECONDS_BETWEEN_LINES)
        minutes, seconds = divmod(round((now - started) / done * (total - done)), 60)
        line = f"{arch}: compiled {done} of {total} kernel variants, {minutes}:{seconds:02} left"
        end = "\n" if done == total or not terminal else ""
        print(f"\r\x1b[K{line}" if terminal else line, end=end, file=sys.stderr, flush=True)

    return progress


def _zip(text: str) -> Path:
    """The path of a zip in a folder that exists."""
    path = Path(text)
    if path.suffix != ".zip" or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} must be a file that ends in .zip, in a folder that exists")
    return path


def _arch_of_this_gpu() -> str:
    try:
        return device_spec(driver.current_gpu()).arch
    except driver.DriverError:
        raise argparse.ArgumentTypeError("no GPU is found: name an architecture, as with --arch sm_90a") from None


if __name__ == "__main__":
    main()
