"""What a launch configuration needs to know of a GPU, as plain data: selection stays a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

MINIMUM_COMPUTE_CAPABILITY = (8, 0)


class UnsupportedDevice(RuntimeError):
    """No GPU that the kernels are written for."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A GPU: its name, compute capability and number of streaming multiprocessors."""

    name: str
    compute_capability: tuple[int, int]
    sm_count: int

    @property
    def arch(self) -> str:
        """The compiler's name of the target; Hopper's own instructions need its "a" form."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}" + ("a" if self.compute_capability == (9, 0) else "")


H200 = DeviceSpec("NVIDIA H200", (9, 0), 132)
A100 = DeviceSpec("NVIDIA A100-SXM4-80GB", (8, 0), 108)


@cache
def device_spec(index: int) -> DeviceSpec:
    """The GPU of an ordinal; raises UnsupportedDevice below compute capability 8.0."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    spec = DeviceSpec(
        properties["name"].decode(), (properties["major"], properties["minor"]), properties["multiProcessorCount"]
    )
    if spec.compute_capability < MINIMUM_COMPUTE_CAPABILITY:
        raise UnsupportedDevice(
            f"{spec.name} has compute capability {spec.compute_capability[0]}.{spec.compute_capability[1]}: "
            "cuConv needs 8.0 or higher"
        )
    return spec
