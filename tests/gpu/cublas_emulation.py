"""python -m tests.gpu.cublas_emulation: whether CUBLAS_EMULATE_SINGLE_PRECISION changes anything on this GPU.

The benchmark refuses the variable. This prints what it does to matrix products and to a 1x1 convolution in FP32, for
each value in a process of its own, since cuBLAS reads it once: a hash of the output, its error against float64, the
time and the kernels. Equal hashes and kernels for all values mean that the variable changes nothing here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

from harness.stopwatch import profiler, timing

VARIABLE, STRATEGY = "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY"
# Eager emulates wherever it can, also where that is slower.
SETTINGS: tuple[dict[str, str], ...] = ({}, {VARIABLE: "0"}, {VARIABLE: "1"}, {VARIABLE: "1", STRATEGY: "eager"})
RUNS = 9


def main() -> int:
    """Measure every setting in a process of its own, or in this one with --measure; returns the exit code."""
    if "--measure" in sys.argv:
        measure()
        return 0
    clean = {name: value for name, value in os.environ.items() if name not in (VARIABLE, STRATEGY)}
    for setting in SETTINGS:
        print(" ".join(f"{name}={value}" for name, value in setting.items()) or "not set", flush=True)
        command = [sys.executable, "-m", "tests.gpu.cublas_emulation", "--measure"]
        if code := subprocess.run(command, env={**clean, **setting}, check=False).returncode:
            return code
    return 0


def measure() -> None:
    """Print a line for each call."""
    torch.set_grad_enabled(False)
    generator = torch.Generator("cuda").manual_seed(1)
    a, b = (torch.randn(4096, 4096, generator=generator, device="cuda") for _ in range(2))
    x = torch.randn(32, 512, 28, 28, generator=generator, device="cuda")
    weight = torch.randn(512, 512, 1, 1, generator=generator, device="cuda")
    weights, images = weight.flatten(1).expand(32, 512, 512), x.flatten(2)
    _print("torch.mm", lambda: torch.mm(a, b), a.double() @ b.double())
    _print("torch.bmm", lambda: torch.bmm(weights, images), weights.double() @ images.double())
    _print("1x1 convolution", lambda: F.conv2d(x, weight), F.conv2d(x.double(), weight.double()))


def _print(what: str, call: Callable[[], torch.Tensor], truth: torch.Tensor) -> None:
    output = call()
    digest = hashlib.sha256(output.cpu().numpy().tobytes()).hexdigest()[:12]
    error = float(torch.linalg.vector_norm(output.double() - truth) / torch.linalg.vector_norm(truth))
    us = min(timing.measure(call, RUNS, torch.device("cuda")).runs_us)
    kernels = dict.fromkeys(name for name, _ in profiler.kernels(call, 1))
    print(f"  {what}: output {digest}, error {error:.2e}, {us:.1f} us, {', '.join(kernels)}")


if __name__ == "__main__":
    sys.exit(main())
