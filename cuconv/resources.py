"""Registers, shared memory and spills of the kernel variants that "auto" may launch; needs no GPU.

The command is `python -m cuconv.resources`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.runtime import compiler

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")  # every kernel compiles for these


def main() -> None:
    """Compile the closed set of variants for the chosen architectures, and print a line for each kernel."""
    parser = argparse.ArgumentParser(prog="python -m cuconv.resources", description=__doc__)
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    architectures = parser.parse_args().arch
    try:
        _print_all(architectures)
    except compiler.CompileError as error:
        sys.exit(f"{parser.prog}: {error}")


def _print_all(architectures: Sequence[str]) -> None:
    """Print a line for each kernel of the closed set."""
    print(f"{'algorithm':17} {'arch':7} {'kernel':17} registers  shared_bytes  spill_bytes  variant")
    for name, algorithm in ALGORITHMS.items():
        for arch in architectures:
            for macros in algorithm.variants(arch):
                variant = " ".join(f"{macro}={value}" for macro, value in macros.items())
                for r in compiler.resources(KernelVariant.of(algorithm.source, arch, macros)):
                    counts = f"{r.registers:9}  {r.shared_bytes:12}  {r.spill_bytes:11}"
                    print(f"{name:17} {arch:7} {r.kernel:17} {counts}  {variant}")


if __name__ == "__main__":
    main()
