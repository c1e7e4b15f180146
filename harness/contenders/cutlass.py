"""CUTLASS's 3xTF32 implicit GEMM (`fast_fp32`), on NHWC tensors.

Optional: a sweep measures it where --provider names it. The operands are converted to channels_last before the call,
so its times leave out a conversion that a user of NCHW tensors pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import ceil, prod

import torch

from cuconv.core.problem import FLOAT_BYTES, ConvProblem
from harness.contenders import base
from harness.contenders.base import NotRunnable, Offer, Operands, Prepared, Unavailable
from harness.contenders.cutlass_library import Kernel, Refused, Sizes, Toolchain, kernels_for, load
from harness.precision import FP32

TENSOR_BYTES = (1 << 31) - 1  # the largest tensor of a launch: CUTLASS refuses larger ones


class Contender(base.Contender):
    """CUTLASS's kernels, of which the fastest counts.

    Raises Unavailable without a GPU of compute capability 8.0 or higher, without nvcc, or without CUTLASS's headers.
    """

    def __init__(self, precision: str = FP32) -> None:
        super().__init__(precision)
        major, minor = torch.cuda.get_device_capability()
        if major < 8:
            raise Unavailable(f"3xTF32 needs a GPU of compute capability 8.0 or higher, this one has {major}.{minor}")
        self._arch = f"sm_{major}{minor}"
        self._toolchain = Toolchain.find()

    def begin(self, problems: Iterable[ConvProblem], algorithms: frozenset[str] | None) -> None:
        """Compile the kernels that the sweep tries, once for a machine: about six seconds of a core each."""
        kernels = [kernel for problem in problems if problem.groups == 1 for kernel in kernels_for(problem)]
        self._toolchain.compile_all(kernels, self._arch)

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """The one algorithm, fast_fp32: every kernel with each of its split-K counts is a way to compute it."""
        first, *others = self._ways(problem, operands)
        return [Offer("cutlass", "fast_fp32", first, self.precision, tuple(others))]

    def _ways(self, problem: ConvProblem, operands: Operands) -> list[Callable[[], Prepared]]:
        multiprocessors = torch.cuda.get_device_properties(operands.input.device).multi_processor_count
        try:
            part = replace(problem, n=images_of_a_launch(problem))
        except NotRunnable as reason:
            return [partial(_refuse, reason)]
        return [
            partial(self._prepare, kernel, slices, part, problem, operands)
            for kernel in kernels_for(problem)
            for slices in kernel.split_counts(part, multiprocessors)
        ]

    def _prepare(
        self, kernel: Kernel, slices: int, part: ConvProblem, problem: ConvProblem, operands: Operands
    ) -> Prepared:
        return self._call(kernel, slices, part, _in_channels_last(problem, operands))

    def _call(self, kernel: Kernel, slices: int, part: ConvProblem, tensors: Operands) -> Prepared:
        """The call of one kernel with a number of split-K slices; part: the images of one launch.

        Its workspace is a semaphore for each block of a GPU that is not filled: kilobytes, below every limit.
        """
        library = load(self._toolchain.compile(kernel, self._arch))
        needed = library.workspace_bytes(Sizes.of(part, slices))
        workspace = torch.empty(needed, dtype=torch.uint8, device=tensors.input.device)
        inputs, outputs = tensors.input.split(part.n), tensors.output.split(part.n)
        try:
            convolutions = [
                library.convolution(Sizes.of(replace(part, n=len(x)), slices), x, tensors.weight, y, workspace)
                for x, y in zip(inputs, outputs, strict=True)
            ]
        except Refused as reason:
            raise NotRunnable("unsupported", f"CUTLASS's kernel {kernel.name} says: {reason}") from None

        def call() -> torch.Tensor:
            for convolution in convolutions:
                convolution.run()
            return tensors.output

        versions = f"CUTLASS {self._toolchain.cutlass_version}, nvcc {self._toolchain.nvcc_version}"
        return Prepared(call, needed, f"{versions}: {kernel.name} split-K {slices}, operands in channels_last")


def images_of_a_launch(problem: ConvProblem) -> int:
    """The images that one launch convolves: all, or equal parts of them where CUTLASS refuses tensors so large.

    Raises NotRunnable where there are groups, and where the weights or one image are too large.
    """
    if problem.groups > 1:
        raise NotRunnable("unsupported", "this kernel of CUTLASS computes one group only")
    image = FLOAT_BYTES * max(problem.c * problem.h * problem.w, problem.m * problem.out_pixels)
    if max(image, FLOAT_BYTES * prod(problem.weight_shape)) > TENSOR_BYTES:
        raise NotRunnable("unsupported", f"CUTLASS computes on tensors of at most {TENSOR_BYTES} bytes")
    launches = ceil(problem.n / (TENSOR_BYTES // image))
    return ceil(problem.n / launches)


def _refuse(reason: NotRunnable) -> Prepared:
    raise reason


def _in_channels_last(problem: ConvProblem, operands: Operands) -> Operands:
    """Copies of input and weight in channels_last, and an output in it."""
    last = torch.channels_last
    output = torch.empty(problem.output_shape, device=operands.input.device, memory_format=last)
    return Operands(
        operands.input.contiguous(memory_format=last), operands.weight.contiguous(memory_format=last), output
    )
