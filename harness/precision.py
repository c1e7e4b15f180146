"""The precision that a process measures, FP32, TF32, FP16 or BF16: one for its whole life.

NVIDIA's libraries read NVIDIA_TF32_OVERRIDE when they start. With 0 nothing rounds its inputs to TF32, not even cuBLAS
under cuDNN's engines. Without the variable a library may round where the call allows it. So one process measures one
precision only. FP16 and BF16 mean inputs, weights and outputs of this type.
"""

from __future__ import annotations

import os

from cuconv.core.problem import BF16, FP16, FP32, HALVES, PRECISIONS, TF32

__all__ = [
    "BF16", "FP16", "FP32", "HALVES", "IN_TORCH", "MEASURED", "OVERRIDE", "PRECISIONS", "TF32", "of_process",
    "set_for_process",
]  # fmt: skip

MEASURED = (*PRECISIONS, *HALVES)  # PRECISIONS are those of FP32 tensors
IN_TORCH = dict.fromkeys(MEASURED, "ieee") | {TF32: "tf32"}  # what torch may do with FP32 data, in torch's words
OVERRIDE = "NVIDIA_TF32_OVERRIDE"

os.environ[OVERRIDE] = "0"  # until a command asks for TF32
_half = ""  # the type of the tensors, where it is not FP32


def set_for_process(precision: str) -> None:
    """Choose the precision of this process: once, and before anything uses a GPU."""
    global _half
    _half = precision if precision in HALVES else ""
    if precision == TF32:
        os.environ.pop(OVERRIDE, None)
    else:
        os.environ[OVERRIDE] = "0"


def of_process() -> str:
    """The precision of this process: FP16 or BF16, or that in which NVIDIA's libraries may compute FP32 data."""
    if _half:
        return _half
    return FP32 if os.environ.get(OVERRIDE) == "0" else TF32
