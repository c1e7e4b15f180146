"""The precision that a process measures, FP32 or TF32: one for its whole life.

NVIDIA's libraries read NVIDIA_TF32_OVERRIDE when they start. With 0 nothing rounds its inputs to TF32, not even cuBLAS
under cuDNN's engines. Without the variable a library may round where the call allows it. So one process never measures
both.
"""

from __future__ import annotations

import os

from cuconv.problem import FP32, PRECISIONS, TF32

__all__ = ["FP32", "IN_TORCH", "OVERRIDE", "PRECISIONS", "TF32", "of_process", "set_for_process"]

IN_TORCH = {FP32: "ieee", TF32: "tf32"}  # the names that torch has for them
OVERRIDE = "NVIDIA_TF32_OVERRIDE"

os.environ[OVERRIDE] = "0"  # until a command asks for TF32


def set_for_process(precision: str) -> None:
    """Choose the precision of this process: once, and before anything uses a GPU."""
    if precision == TF32:
        os.environ.pop(OVERRIDE, None)
    else:
        os.environ[OVERRIDE] = "0"


def of_process() -> str:
    """The precision in which NVIDIA's libraries may compute FP32 data in this process."""
    return FP32 if os.environ.get(OVERRIDE) == "0" else TF32
