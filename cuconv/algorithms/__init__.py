"""The algorithms: one pair of files with the same stem each, NAME.py and NAME.cu, registered here.

An algorithm is a module with

    SOURCE      the path of its .cu file
    PRECISIONS  of a problem that it computes; an algorithm that has none computes in FP32
    variants(arch) -> the macro settings that it may compile for an architecture such as "sm_90a"; a sample
                of them where they are many, with every code path; none where the architecture lacks something
    candidates(problem, device) -> the configurations that can run: frozen, with `workspace_bytes`, and no two
                that print alike; a pure function that raises UnsupportedProblem
    configure(problem, device) -> the one to take, likewise
    launches(problem, configuration, aligned, relu) -> a tuple of cuconv.jit.Launch, in order; a pure function.
                Arguments that are operands are the addresses that cuconv.jit names: INPUT, WEIGHT, BIAS (0 for
                none), OUTPUT, WORKSPACE, or one of them plus bytes. aligned: input, weights and output,
                whose addresses are not known yet, start at multiples of 16 bytes
    Costs       the constants of its cost model (cuconv.costs)
    COSTS       by precision those in use, read from its section of costs.toml, or of costs_tf32.toml
    predicted_us(problem, device, configuration, costs) -> estimated device time in microseconds, by which auto
                chooses; costs are by default those in use for the configuration's precision

The tf32x3 algorithms share tf32x3.py, and tf32x3.cuh or tf32x3_mma.cuh; fp16x3.cu is in parts, of which
fp16x3_split.cuh, with fp16x3_split.py, is fp16x3_pointwise's too, and some more fp16x3_winograd's.
fp16x3_pointwise_forms.py has the forms of fp16x3_pointwise, fp16x3_pointwise_tiles.py its tiles.
"""

from types import ModuleType

from cuconv.algorithms import (
    fp16x3,
    fp16x3_pointwise,
    fp16x3_winograd,
    tf32x3_gemm,
    tf32x3_presplit,
    tf32x3_shallow,
    tf32x3_stationary,
    tf32x3_wgmma,
    two_stage,
)
from cuconv.problem import FP32

ALGORITHMS = {
    "two_stage": two_stage,
    "tf32x3_gemm": tf32x3_gemm,
    "tf32x3_wgmma": tf32x3_wgmma,
    "tf32x3_presplit": tf32x3_presplit,
    "tf32x3_shallow": tf32x3_shallow,
    "tf32x3_stationary": tf32x3_stationary,
    "fp16x3": fp16x3,
    "fp16x3_pointwise": fp16x3_pointwise,
    "fp16x3_winograd": fp16x3_winograd,
}


def precisions_of(algorithm: ModuleType) -> tuple[str, ...]:
    """The precisions of a problem that an algorithm computes."""
    return getattr(algorithm, "PRECISIONS", (FP32,))


def offering(precision: str) -> tuple[str, ...]:
    """The names of the algorithms that compute problems of a precision."""
    return tuple(name for name, algorithm in ALGORITHMS.items() if precision in precisions_of(algorithm))
