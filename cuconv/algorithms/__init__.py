"""The algorithms, by name: each is an instance of a class that derives from `cuconv.algorithms.base.Algorithm`.

A family of algorithms has a folder: the module and the CUDA source of each, with the same stem, and the headers that
only this family includes. `common` has what several families share. Add an algorithm by adding its class here.
"""

from cuconv.algorithms.base import registry
from cuconv.algorithms.fp16x3.fp16x3 import Fp16x3
from cuconv.algorithms.pointwise.fp16x3_pointwise import Fp16x3Pointwise
from cuconv.algorithms.tf32x3.tf32x3_gemm import Tf32x3Gemm
from cuconv.algorithms.tf32x3.tf32x3_shallow import Tf32x3Shallow
from cuconv.algorithms.tf32x3.tf32x3_stationary import Tf32x3Stationary
from cuconv.algorithms.tf32x3.tf32x3_wgmma import Tf32x3Wgmma
from cuconv.algorithms.two_stage.two_stage import TwoStage
from cuconv.algorithms.winograd.fp16x3_winograd import Fp16x3Winograd

ALGORITHMS = registry(
    [
        TwoStage(),
        Tf32x3Gemm(),
        Tf32x3Wgmma(),
        Tf32x3Shallow(),
        Tf32x3Stationary(),
        Fp16x3(),
        Fp16x3Pointwise(),
        Fp16x3Winograd(),
    ]
)


def offering(precision: str) -> tuple[str, ...]:
    """The names of the algorithms that compute problems of a precision, "fp32" or "tf32"."""
    return tuple(name for name, algorithm in ALGORITHMS.items() if precision in algorithm.precisions)
