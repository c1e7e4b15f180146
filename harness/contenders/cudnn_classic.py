"""The eight classic algorithms of cuDNN by name, through the C interface of the libcudnn that torch loaded.

torch cannot name an algorithm, and newer bindings of cuDNN lack these calls. The library itself has them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_void_p
from functools import cache, partial

import torch

from cuconv.core.problem import ConvProblem
from harness import libcudnn
from harness.contenders import base
from harness.contenders.base import NotRunnable, Offer, Operands, Prepared, Unavailable
from harness.contenders.registry import CLASSIC_ALGORITHMS
from harness.contenders.workspace import Workspace
from harness.precision import FP32, TF32

# Values of cuDNN's enumerations; the position of a name in CLASSIC_ALGORITHMS is its cudnnConvolutionFwdAlgo_t.
TENSOR_NCHW = 0
DATA_FLOAT = 0
CROSS_CORRELATION = 1
MATH = {FP32: 3, TF32: 0}  # FMA, and the default, with which algorithms may round their inputs to TF32
NOT_SUPPORTED = range(3000, 4000)  # CUDNN_STATUS_NOT_SUPPORTED and its subcodes

_SIGNATURES: dict[str, tuple] = {
    "cudnnCreate": (POINTER(c_void_p),),
    "cudnnDestroy": (c_void_p,),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnCreateTensorDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyTensorDescriptor": (c_void_p,),
    "cudnnSetTensor4dDescriptor": (c_void_p, *[c_int] * 6),
    "cudnnCreateFilterDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyFilterDescriptor": (c_void_p,),
    "cudnnSetFilter4dDescriptor": (c_void_p, *[c_int] * 6),
    "cudnnCreateConvolutionDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyConvolutionDescriptor": (c_void_p,),
    "cudnnSetConvolution2dDescriptor": (c_void_p, *[c_int] * 8),
    "cudnnSetConvolutionMathType": (c_void_p, c_int),
    "cudnnSetConvolutionGroupCount": (c_void_p, c_int),
    # handle, input, weight, convolution, output, algorithm, bytes
    "cudnnGetConvolutionForwardWorkspaceSize": (*[c_void_p] * 5, c_int, POINTER(c_size_t)),
    # handle, alpha, input and data, weight and data, convolution, algorithm, workspace, bytes, beta, output and data
    "cudnnConvolutionForward": (*[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 3),
}


@cache
def _library() -> tuple[ctypes.CDLL, str]:
    """The libcudnn that torch has loaded, and its path. Raises Unavailable where there is none."""
    loaded = libcudnn.loaded()
    if loaded is None:
        raise Unavailable("torch has loaded no libcudnn: install a build of torch for CUDA")
    path, _ = loaded
    library = ctypes.CDLL(path)
    for name, argtypes in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise Unavailable(f"{path} has no {name}: the classic algorithms need cuDNN 8 or 9")
        function.argtypes, function.restype = argtypes, c_int
    library.cudnnGetErrorString.argtypes, library.cudnnGetErrorString.restype = (c_int,), c_char_p
    return library, path


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        name = library.cudnnGetErrorString(status).decode()
        kind = "unsupported" if status in NOT_SUPPORTED else "error"
        raise NotRunnable(kind, f"cuDNN says {name}({status})")


class _Case:
    """The descriptors of one case, for contiguous NCHW tensors; destroyed when the last call that uses them is gone."""

    def __init__(self, library: ctypes.CDLL, problem: ConvProblem, precision: str):
        self._library = library
        self.input = self._tensor(problem.input_shape)
        self.output = self._tensor(problem.output_shape)
        self.weight = self._create("Filter")
        shape = problem.weight_shape
        _check(library, library.cudnnSetFilter4dDescriptor(self.weight, DATA_FLOAT, TENSOR_NCHW, *shape))
        self.convolution = self._create("Convolution")
        p = problem
        steps = (p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w)
        modes = (CROSS_CORRELATION, DATA_FLOAT)
        _check(library, library.cudnnSetConvolution2dDescriptor(self.convolution, *steps, *modes))
        _check(library, library.cudnnSetConvolutionGroupCount(self.convolution, p.groups))
        _check(library, library.cudnnSetConvolutionMathType(self.convolution, MATH[precision]))

    def _tensor(self, shape: tuple[int, int, int, int]) -> c_void_p:
        descriptor = self._create("Tensor")
        _check(self._library, self._library.cudnnSetTensor4dDescriptor(descriptor, TENSOR_NCHW, DATA_FLOAT, *shape))
        return descriptor

    def _create(self, kind: str) -> c_void_p:
        descriptor = c_void_p()
        _check(self._library, getattr(self._library, f"cudnnCreate{kind}Descriptor")(byref(descriptor)))
        weakref.finalize(self, getattr(self._library, f"cudnnDestroy{kind}Descriptor"), descriptor)
        return descriptor


class Contender(base.Contender):
    """cuDNN's classic algorithms. Raises Unavailable where torch has no cuDNN."""

    def __init__(self, precision: str = FP32) -> None:
        super().__init__(precision)
        self._library, _ = _library()
        self._handle = c_void_p()
        _check(self._library, self._library.cudnnCreate(byref(self._handle)))
        # Not at exit: by then the CUDA context may be gone.
        weakref.finalize(self, self._library.cudnnDestroy, self._handle).atexit = False
        self._workspace = Workspace()

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """All eight algorithms. cuDNN says whether one can run in prepare(), and again at the first call."""
        case = cache(partial(_Case, self._library, problem, self.precision))
        return [
            Offer("cudnn", name, partial(self._prepare, case, code, operands), self.precision)
            for code, name in enumerate(CLASSIC_ALGORITHMS)
        ]

    def _prepare(self, shared_case: Callable[[], _Case], algorithm: int, operands: Operands) -> Prepared:
        library, handle = self._library, self._handle
        case, size = shared_case(), c_size_t()
        descriptors = (case.input, case.weight, case.convolution, case.output)
        _check(library, library.cudnnGetConvolutionForwardWorkspaceSize(handle, *descriptors, algorithm, byref(size)))
        workspace = self._workspace.reserve(size.value)
        one, zero = c_float(1.0), c_float(0.0)
        x, w, y = operands.input, operands.weight, operands.output

        def call() -> torch.Tensor:
            _check(library, library.cudnnSetStream(handle, torch.cuda.current_stream().cuda_stream))
            status = library.cudnnConvolutionForward(
                handle,
                byref(one),
                case.input,
                x.data_ptr(),
                case.weight,
                w.data_ptr(),
                case.convolution,
                algorithm,
                workspace.data_ptr() if size.value else 0,
                size.value,
                byref(zero),
                case.output,
                y.data_ptr(),
            )
            _check(library, status)
            return y

        return Prepared(call, size.value)
