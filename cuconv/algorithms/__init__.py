"""The registry of algorithms: one instance of each subclass of `cuconv.algorithms.base.Algorithm`, by name.

Each family of algorithms has a folder. It holds a module and a CUDA source of the same stem for every algorithm, and
the headers that only this family includes. `common` has what several families share. To add an algorithm, import its
class and add an instance of it to the list below.
"""

from cuconv.algorithms.base import registry
from cuconv.algorithms.channels_last.nhwc_depthwise import NhwcDepthwise
from cuconv.algorithms.channels_last.nhwc_grouped import NhwcGrouped
from cuconv.algorithms.channels_last.nhwc_split import NhwcSplit
from cuconv.algorithms.channels_last.nhwc_stem import NhwcStem
from cuconv.algorithms.channels_last.nhwc_wgmma import NhwcWgmma
from cuconv.algorithms.channels_last.nhwc_window import NhwcWindow
from cuconv.algorithms.depthwise.depthwise import Depthwise
from cuconv.algorithms.direct.direct import Direct
from cuconv.algorithms.fp16x3.fp16x3 import Fp16x3
from cuconv.algorithms.gemv.gemv import Gemv
from cuconv.algorithms.plain_pointwise.plain_pointwise import PlainPointwise
from cuconv.algorithms.pointwise.fp16x3_pointwise import Fp16x3Pointwise
from cuconv.algorithms.tf32x3.tf32x3_gemm import Tf32x3Gemm
from cuconv.algorithms.tf32x3.tf32x3_shallow import Tf32x3Shallow
from cuconv.algorithms.tf32x3.tf32x3_wgmma import Tf32x3Wgmma
from cuconv.algorithms.two_stage.two_stage import TwoStage
from cuconv.algorithms.winograd.fp16x3_winograd import Fp16x3Winograd

ALGORITHMS = registry(
    [
        TwoStage(),
        Tf32x3Gemm(),
        Tf32x3Wgmma(),
        Tf32x3Shallow(),
        Fp16x3(),
        Fp16x3Pointwise(),
        Fp16x3Winograd(),
        Depthwise(),
        Direct(),
        PlainPointwise(),
        Gemv(),
        NhwcWgmma(),
        NhwcSplit(),
        NhwcDepthwise(),
        NhwcGrouped(),
        NhwcStem(),
        NhwcWindow(),
    ]
)


def offering(precision: str) -> tuple[str, ...]:
    """The names of the algorithms that offer a precision, such as "fp32"."""
    return tuple(name for name, algorithm in ALGORITHMS.items() if precision in algorithm.precisions)
