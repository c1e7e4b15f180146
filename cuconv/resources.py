"""python -m cuconv.resources: registers, shared memory and spills of every kernel; needs no GPU."""

from __future__ import annotations

import argparse

from cuconv import jit
from cuconv.algorithms import ALGORITHMS

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")  # what the README promises that kernels compile for


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cuconv.resources", description=__doc__)
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    architectures = parser.parse_args().arch
    print(f"{'algorithm':12} {'variant':20} {'arch':7} {'kernel':14} registers  shared_bytes  spill_bytes")
    for name, algorithm in ALGORITHMS.items():
        for arch in architectures:
            for macros in algorithm.variants(arch):
                variant = " ".join(f"{macro}={value}" for macro, value in macros.items())
                for r in jit.resources(algorithm.source, arch, macros):
                    place = f"{name:12} {variant:20} {arch:7} {r.kernel:14}"
                    print(f"{place} {r.registers:9}  {r.shared_bytes:12}  {r.spill_bytes:11}")


if __name__ == "__main__":
    main()
