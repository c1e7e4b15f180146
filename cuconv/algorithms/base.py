"""The base class of every algorithm, and what a launch configuration must have.

An algorithm is one class in a module with the stem of its CUDA source: `tf32x3/tf32x3_wgmma.py` and
`tf32x3/tf32x3_wgmma.cu`. It turns a problem into launch configurations, predicts the time of each, and turns a
configuration into launches. All of that is pure: it needs no GPU, and equal arguments give equal results.
`cuconv.algorithms.ALGORITHMS` has one instance of each class, by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cuconv.algorithms.common import finish_output
from cuconv.algorithms.common.implicit_gemm import VECTOR_FLOATS
from cuconv.algorithms.common.weight_packing import KERNEL, WeightPacking
from cuconv.core import costs
from cuconv.core.activation import NONE, Activation
from cuconv.core.elementwise import Number
from cuconv.core.launch import FLAGS, PACKED, RESIDUAL, Address, Launch
from cuconv.core.problem import FP32, ConvProblem, UnsupportedProblem
from cuconv.device import DeviceSpec

Macros = dict[str, int]
"""The preprocessor settings (-D) that one kernel variant is compiled with."""


class NotInSet(UnsupportedProblem):
    """The closed set has no kernel variant with which an algorithm computes a problem."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of a call, other than its problem and launch configuration, by which an algorithm makes its kernels.

    aligned           whether input, weight, output and residual all start at a multiple of 16 bytes
    activation        the function of each output, after bias and residual
    residual          whether a tensor like the output is added before the activation
    output_channels   those of the tensor that the output is a slice of; None where the output is a tensor of its own
    packed            whether the weights are constant; `Algorithm.packing_launch` has packed them, if it packs any
    overlap           whether the GPU has programmatic dependent launch, as from compute capability 9.0 on
    """

    aligned: bool = True
    activation: Activation = NONE
    residual: bool = False
    output_channels: int | None = None
    packed: bool = False
    overlap: bool = True

    @property
    def activation_arguments(self) -> tuple[int, int]:
        """The kind and the packed numbers of the activation, as kernels take them (common/activation.cuh)."""
        return self.activation.kind, self.activation.packed_numbers

    @property
    def macros(self) -> Macros:
        """Macros of the main kernel, and of what is compiled with it (common/geometry.cuh)."""
        return {"RESIDUAL": int(self.residual)} | ({"PREPARED": 1} if self.packed else {})

    def output_planes(self, problem: ConvProblem) -> int:
        """The planes from one image of the output to the next."""
        return problem.m if self.output_channels is None else self.output_channels

    @property
    def arguments(self) -> tuple[Address | int, ...]:
        """The last arguments of the main kernel, which exist only where the macros RESIDUAL and PREPARED are 1."""
        return ((RESIDUAL,) if self.residual else ()) + ((PACKED, FLAGS) if self.packed else ())

    @property
    def residual_argument(self) -> Address | int:
        """The last argument of a main kernel without these macros; 0 where there is no residual."""
        return RESIDUAL if self.residual else 0


class Configuration(Protocol):
    """A launch configuration: a frozen, hashable object whose str() is one line that no other configuration has."""

    @property
    def blocks(self) -> int:
        """Blocks of the main kernel's grid."""

    @property
    def threads(self) -> int:
        """Threads of a block of the main kernel."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of the main kernel, in bytes."""

    @property
    def workspace_bytes(self) -> int:
        """Temporary device memory of a call, in bytes."""


Config = TypeVar("Config", bound=Configuration)
Costs = TypeVar("Costs")


class Algorithm(ABC, Generic[Config, Costs]):
    """One way to compute a convolution: its kernels, their launch configurations and a cost model.

    A subclass sets the class attributes and defines the abstract methods. Instances have no state.
    """

    source: ClassVar[Path]
    """The .cu file. Its stem is the algorithm's name."""

    summary: ClassVar[str]
    """What the algorithm does and when it is fast, in one line."""

    precisions: ClassVar[tuple[str, ...]] = (FP32,)
    """The precisions that a problem may ask for."""

    fuses_residual: ClassVar[bool] = False
    """Whether the last kernel adds a residual itself, by its macro RESIDUAL (common/geometry.cuh) or an argument."""

    writes_slices: ClassVar[bool] = False
    """Whether the kernels can write to a slice of a tensor's channels: they take `CallOptions.output_planes`."""

    superseded_by: ClassVar[str | None] = None
    """An algorithm that is faster wherever it computes a problem, so that "auto" need not weigh this one then."""

    costs_type: ClassVar[type]
    """The frozen dataclass of the cost model's constants; `cuconv.core.costs.constant` makes each field."""

    @cached_property
    def name(self) -> str:
        """The name that `conv2d(algorithm=...)` takes."""
        return self.source.stem

    def costs(self, precision: str = FP32) -> Costs:
        """The fitted constants for a precision; raises CostsError where their file lacks one or has a wrong value."""
        return _load_costs(self.costs_type, self.name, precision)

    @abstractmethod
    def variants(self, arch: str) -> list[Macros]:
        """The algorithm's part of the closed set for an architecture such as "sm_90a" (`cuconv.algorithms.kernel_set`).

        "auto" launches no others; they ship, and tests compile them. These are all variants where they are few, and
        otherwise those that a file lists. There is none where the architecture lacks the instructions.
        """

    def slowdown(self, problem: ConvProblem, device: DeviceSpec, config: Config, options: CallOptions) -> float:
        """The factor by which a call takes longer than its estimate, since only kernels of the closed set may run.

        It is inf where the set has none for the configuration, and 1 for an algorithm all of whose variants are of the
        set; the other algorithms are `common.listed.ListedVariants`.
        """
        return 1.0

    @abstractmethod
    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""

    @abstractmethod
    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The kernels of a call, in the order of their launches, with that which packs the weights.

        The main kernel and what is compiled with it have the macros of the options, and its last arguments are theirs.
        options: those that the algorithm fulfils itself, as `launches` hands them on: a residual only where it
        `fuses_residual`, output channels only where it `writes_slices`, packed only where constant weights make a
        difference.
        """

    def launches(
        self, problem: ConvProblem, config: Config, options: CallOptions = CallOptions()
    ) -> tuple[Launch, ...]:
        """The kernels of a call, in the order of their launches.

        Where the algorithm does not add a residual itself, one more kernel adds it and computes the activation.
        Raises UnsupportedProblem for an output of more elements than that kernel's grid counts.
        """
        if self._takes_one_more(problem, options):
            last = finish_output.finish_output(problem, options.aligned, options.activation, options.overlap)
            return (*self.launches(problem, config, replace(options, residual=False, activation=NONE)), last)
        found = self.kernels(problem, config, self.fulfilled(problem, config, options))
        return tuple(one for one in found if one.kernel != KERNEL) if options.packed else found

    def adding_us(self, problem: ConvProblem, options: CallOptions) -> float:
        """The predicted time in microseconds of one more kernel, which adds the residual; 0 where there is none."""
        return finish_output.predicted_us(problem) if self._takes_one_more(problem, options) else 0.0

    def _takes_one_more(self, problem: ConvProblem, options: CallOptions) -> bool:
        """Whether a kernel of its own adds the residual, and then computes the activation."""
        return options.residual and not self._possible(problem, options).residual

    def packing_launch(self, problem: ConvProblem, config: Config, options: CallOptions) -> Launch | None:
        """The launch that packs constant weights for calls with such options; None where no kernel packs weights.

        Packing must have ended before a call is launched: it reads packed weights without waiting for the kernel ahead.
        """
        if self.packing(problem, config) is None:
            return None
        options = self.fulfilled(problem, config, options if options.packed else replace(options, packed=True))
        return next((one for one in self.kernels(problem, config, options) if one.kernel == KERNEL), None)

    def fulfilled(self, problem: ConvProblem, config: Config, options: CallOptions) -> CallOptions:
        """The options as `kernels` takes them: as `_possible`, and packed only what can be."""
        options = self._possible(problem, options)
        unpacked = options.packed and self.packing(problem, config) is None
        return replace(options, packed=False) if unpacked else options

    def _possible(self, problem: ConvProblem, options: CallOptions) -> CallOptions:
        """The options, aligned only if in every image of a slice, and with a residual only if the algorithm adds it."""
        aligned, channels = options.aligned, options.output_channels
        if channels is not None:
            aligned = aligned and channels * problem.out_pixels % VECTOR_FLOATS == 0
        residual = options.residual and self.fuses_residual and aligned
        if (aligned, residual) == (options.aligned, options.residual):
            return options  # a new object takes microseconds
        return replace(options, aligned=aligned, residual=residual)

    @abstractmethod
    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of all kernels in microseconds, by the cost model with the given constants.

        Each algorithm defines its model here; `ranked` and `predicted_us` call it. It takes the constants as an
        argument because `harness tune` tries other values of them.
        """

    def predicted_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs | None = None
    ) -> float:
        """The estimate in microseconds, with the fitted constants unless given others, and without any `slowdown`.

        "auto" compares algorithms by `weighed`. `harness tune` selects the configurations to measure by this estimate
        and, with trial constants, fits the models.
        """
        return self.estimate_us(problem, device, config, costs or self.costs(problem.precision))

    def packing(self, problem: ConvProblem, config: Config) -> WeightPacking | None:
        """How a kernel ahead of the main one packs the weights; None where there is no such kernel."""
        return None

    def prepared_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs | None = None
    ) -> float:
        """The estimate for weights that are packed already."""
        constants = costs or self.costs(problem.precision)
        return self.estimate_us(problem, device, config, constants) - self.packing_us(problem, config, constants)

    def packing_us(self, problem: ConvProblem, config: Config, costs: Costs) -> Number:
        """The estimated time of the kernel that packs the weights, in microseconds; 0 where there is none."""
        packing = self.packing(problem, config)
        return packing.predicted_us(problem, costs) if packing else 0.0  # type: ignore[arg-type]

    def configure(self, problem: ConvProblem, device: DeviceSpec, prepared: bool = False) -> Config:
        """The candidate of least predicted time, whether the closed set has its kernels or not.

        prepared: for weights that are packed. Raises UnsupportedProblem where there is no candidate.
        """
        return next(iter(self.ranked(problem, device, CallOptions(packed=prepared), closed=False)))[1]

    def weighed(self, problem: ConvProblem, device: DeviceSpec, options: CallOptions) -> tuple[float, Config]:
        """The first of `ranked`, by which "auto" compares algorithms.

        Raises NotInSet where the closed set has no kernels for any candidate, UnsupportedProblem where there is none.
        """
        for timed in self.ranked(problem, device, options):
            return timed
        raise self.not_in_set(problem)

    def ranked(
        self, problem: ConvProblem, device: DeviceSpec, options: CallOptions, closed: bool = True
    ) -> Iterable[tuple[float, Config]]:
        """The candidates in the order of their predicted times in microseconds, each after its time.

        closed: those alone whose kernels are of the closed set, with the times of these kernels.
        """
        constants = self.costs(problem.precision)
        predict = self.prepared_us if options.packed else self.estimate_us
        times = []
        for one in self.candidates(problem, device):
            slowdown = self.slowdown(problem, device, one, options) if closed else 1.0
            if slowdown < inf:
                times.append((predict(problem, device, one, constants) * slowdown, one))
        return sorted((timed for timed in times if timed[0] < inf), key=lambda timed: timed[0])

    def not_in_set(self, problem: ConvProblem) -> NotInSet:
        """The error for a problem that the closed set has no kernels of this algorithm for."""
        return NotInSet(f"{problem.label}: {self.name} has no kernel of the closed set for it")

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """A time in microseconds that no configuration's predicted time is below; inf only where there is none.

        "auto" weighs only algorithms whose bound is below the best time so far. This one is the constant `memory`
        times the operands' bytes: a model that has this constant adds the product, or takes a norm with it.
        """
        constants: Any = self.costs(problem.precision)
        least_us: float = constants.memory * problem.min_bytes / 2**20
        return least_us

    def summation(self, config: Config) -> Hashable | None:
        """A value that stands for the order and the rounding with which the products of an output are added.

        Configurations with equal values give an image bit for bit the same output, whatever the batch and the image's
        place in it. None where that depends on the batch.
        """
        return None

    def static_shared_bytes(self, macros: Macros) -> int:
        """The most static shared memory, in bytes, that the main kernel of a variant may have.

        Configurations leave this much room besides their `shared_bytes`. A test compares it with the compiler's report.
        """
        return 0


@cache
def _load_costs(costs_type: type, name: str, precision: str) -> Any:
    return costs.load(costs_type, name, precision)


def registry(algorithms: Iterable[Algorithm[Any, Any]]) -> dict[str, Algorithm[Any, Any]]:
    """The algorithms by name, in the given order."""
    return {algorithm.name: algorithm for algorithm in algorithms}
