"""The precision that a process measures, FP32, TF32 or FP16: one for its whole life.

NVIDIA's libraries read NVIDIA_TF32_OVERRIDE when they start. With 0 nothing rounds its inputs to TF32, not even cuBLAS
under cuDNN's engines. Without the variable a library may round where the call allows it. So one process measures one
precision only. FP16 means inputs, weights and outputs in half precision: cuDNN and torch compute it, cuConv does not.
"""

from __future__ import annotations

import os

from cuconv.core.problem import FP32, PRECISIONS, TF32

__all__ = ["FP16", "FP32", "IN_TORCH", "MEASURED", "OVERRIDE", "PRECISIONS", "TF32", "of_process", "set_for_process"]

FP16 = "fp16"
MEASURED = (*PRECISIONS, FP16)  # PRECISIONS are those of cuConv
IN_TORCH = {FP32: "ieee", TF32: "tf32", FP16: "ieee"}  # what torch may do with FP32 data, in torch's words
OVERRIDE = "NVIDIA_TF32_OVERRIDE"

os.environ[OVERRIDE] = "0"  # until a command asks for TF32
_in_half = False


def set_for_process(precision: str) -> None:
    """Choose the precision of this process: once, and before anything uses a GPU."""
    global _in_half
    _in_half = precision == FP16
    if precision == TF32:
        os.environ.pop(OVERRIDE, None)
    else:
        os.environ[OVERRIDE] = "0"


def of_process() -> str:
    """The precision of this process: FP16, or that in which NVIDIA's libraries may compute FP32 data."""
    if _in_half:
        return FP16
    return FP32 if os.environ.get(OVERRIDE) == "0" else TF32
