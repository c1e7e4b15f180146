"""Environment variables that change what is measured: some are refused, the others are recorded with the results.

NVIDIA_TF32_OVERRIDE is neither: `harness.precision` sets it.
"""

from __future__ import annotations

import os

from harness.errors import UsageError

REFUSED = {
    "CUBLAS_EMULATE_SINGLE_PRECISION": "cuBLAS would make FP32 products of BF16 ones",
    "CUDA_LAUNCH_BLOCKING": "every launch would wait for its end",
}
RECORDED = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUDNN_CONV_WSCAP_DBG",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B",
    "TORCH_CUDNN_V8_API_DISABLED",
)


def refuse() -> None:
    """Raise UsageError where a variable of REFUSED is set to anything but 0; every measuring command calls it."""
    for name, why in REFUSED.items():
        if (value := os.environ.get(name, "")) not in ("", "0"):
            raise UsageError(f"{name}={value}: {why}, must be 0 or not set: 'unset {name}'")


def recorded() -> dict[str, str]:
    """The variables of RECORDED that are set, and those of torch.compile, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if name in RECORDED or _is_of_compile(name)}


def _is_of_compile(name: str) -> bool:
    """Whether a variable changes what torch.compile does; it sets the folder of its cache itself."""
    return name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR"
