"""cuConv in torch: an operator, a module, and models that are converted, exported, or sent to cuConv as they run.

    model, report = cuconv.nn.convert(model.eval(), x)  # batch norm, bias, residual, activation are folded
    with cuconv.nn.enabled():                           # the same model, unchanged
        y = model(x)

It needs torch, which the rest of the library does not. What cuConv does not compute goes to torch's own kernels.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "cuconv.nn works on torch's modules, and torch is not installed: run 'pip install torch'"
    ) from error

from cuconv.nn.convert import ConversionError, convert
from cuconv.nn.enabled import enabled
from cuconv.nn.exported import fold
from cuconv.nn.modules import Conv1d, Conv2d, Linear
from cuconv.nn.operator import conv2d
from cuconv.nn.report import Report
from cuconv.nn.signals import conv1d
from cuconv.nn.transposed import conv_transpose1d, conv_transpose2d

__all__ = [
    "ConversionError",
    "Conv1d",
    "Conv2d",
    "Linear",
    "Report",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "convert",
    "enabled",
    "fold",
]
