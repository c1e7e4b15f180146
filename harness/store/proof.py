"""The GPU proof: the kernels and launch code that passed the GPU tests, by device; `python -m harness.store.proof`.

results/DEVICE/verified.json holds a hash of the code of each file of cuconv/. So a machine without a GPU can tell
whether the kernels in the tree are those that were tested on one. Comments, docstrings and formatting do not count.
The command, `make release-check`, fails where they are not.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from harness.store import code, environment
from harness.store.files import read_json, write_whole


def current_files() -> dict[str, str]:
    """The SHA-256 of the code of every kernel source and of the code that launches it, by path in the project."""
    paths = sorted(p for p in (environment.ROOT / "cuconv").rglob("*") if p.suffix in (".cu", ".cuh", ".py"))
    return {str(p.relative_to(environment.ROOT)): code.digest(p) for p in paths}


def write(tests_passed: int) -> Path:
    """Record that all GPU tests of the library passed on the current device; returns the file's path."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    facts = environment.report(device, "make test-gpu")
    proof = {
        "gpu": facts["gpu"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tests_passed": tests_passed,
        "versions": {name: facts[name] for name in ("driver", "cuda_runtime", "cudnn", "torch", "cupy", "nvrtc")},
        "files": current_files(),
    }
    path = environment.ROOT / "results" / environment.device_slug(device) / "verified.json"
    write_whole(path, json.dumps(proof, indent=2) + "\n")
    return path


def outdated(path: Path) -> list[str]:
    """The files whose code differs from a proof's, added and removed ones included."""
    proved, current = read_json(path, "run 'make test-gpu' on a GPU")["files"], current_files()
    return sorted(name for name in {*proved, *current} if proved.get(name) != current.get(name))


def complaints() -> list[str]:
    """A sentence for each proof of an older tree than this one; one sentence where there is no proof."""
    proofs = sorted((environment.ROOT / "results").glob("*/verified.json"))
    if not proofs:
        return ["There is no results/DEVICE/verified.json: run 'make test-gpu' on a GPU"]
    return [_complaint(path.parent.name, changed) for path in proofs if (changed := outdated(path))]


def _complaint(device: str, changed: list[str]) -> str:
    few = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    return f"changed since the GPU tests passed on {device}: {few}: run 'make test-gpu' on it"


if __name__ == "__main__":
    sys.exit("\n".join(complaints()) or None)
