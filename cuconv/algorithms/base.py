"""What an algorithm is: the class that every algorithm of the library derives from.

An algorithm is one class in a module with the stem of its CUDA source: `tf32x3/tf32x3_wgmma.py` and
`tf32x3/tf32x3_wgmma.cu`. It turns a problem into launch configurations, predicts the time of each, and turns a
configuration into launches. All of that is pure: it needs no GPU, and equal arguments give equal results.
`cuconv.algorithms.ALGORITHMS` has an instance of each by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cuconv import costs
from cuconv.device import DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FP32, ConvProblem

Macros = dict[str, int]  # the -D settings that one kernel variant is compiled with


class Configuration(Protocol):
    """A launch configuration: frozen and hashable. str() gives one line, different for different configurations."""

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
    """The .cu file. Its stem is the algorithm's name and that of its main kernel."""

    summary: ClassVar[str]
    """What the algorithm does and when it is fast, in one line."""

    precisions: ClassVar[tuple[str, ...]] = (FP32,)
    """The precisions that a problem may ask for."""

    costs_type: ClassVar[type]
    """A frozen dataclass with the constants of the cost model; every field is made by `cuconv.costs.constant`."""

    @property
    def name(self) -> str:
        """The name that `conv2d(algorithm=...)` takes."""
        return self.source.stem

    def costs(self, precision: str = FP32) -> Costs:
        """The fitted constants for a precision; raises CostsError where their file is not as it must be."""
        return _load_costs(self.costs_type, self.name, precision)

    @abstractmethod
    def variants(self, arch: str) -> list[Macros]:
        """The kernel variants that tests compile for an architecture such as "sm_90a".

        All of them where they are few, else a sample that covers every code path. Empty where the architecture lacks
        the instructions.
        """

    @abstractmethod
    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""

    @abstractmethod
    def launches(self, problem: ConvProblem, config: Config, aligned: bool, relu: bool) -> tuple[Launch, ...]:
        """The kernels to launch, in order.

        aligned: whether input, weight and output start at multiples of 16 bytes; their addresses come later.
        """

    @abstractmethod
    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds of all kernels by the cost model with the given constants."""

    def predicted_us(
        self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs | None = None
    ) -> float:
        """The estimate by which "auto" chooses, in microseconds; with the fitted constants unless others are given."""
        return self.estimate_us(problem, device, config, costs or self.costs(problem.precision))

    def configure(self, problem: ConvProblem, device: DeviceSpec) -> Config:
        """The candidate of least predicted time; raises UnsupportedProblem where there is no candidate."""
        constants = self.costs(problem.precision)
        return min(
            self.candidates(problem, device),
            key=lambda config: self.estimate_us(problem, device, config, constants),
        )

    def static_shared_bytes(self, macros: Macros) -> int:
        """The static shared memory, in bytes, that configurations leave room for beside their `shared_bytes`.

        A test compares it with the compiler's report for every variant.
        """
        return 0


@cache
def _load_costs(costs_type: type, name: str, precision: str) -> Any:
    return costs.load(costs_type, name, precision)


def registry(algorithms: Sequence[Algorithm[Any, Any]]) -> dict[str, Algorithm[Any, Any]]:
    """The algorithms by name, in order."""
    return {algorithm.name: algorithm for algorithm in algorithms}
