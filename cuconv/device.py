"""What a launch configuration needs to know of a GPU, as plain data: selection stays a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

MINIMUM_COMPUTE_CAPABILITY = (8, 0)

KIB = 1024
SHARED_BYTES_OF_SYSTEM = KIB  # that every resident block takes besides its own
SHARED_UNIT = 128  # bytes, in which it is given
REGISTERS_PER_SM = 64 * KIB
L2_BYTES = 50 * 1024 * KIB  # of an H100 and an H200
PORTABLE_CLUSTER, MAX_CLUSTER = 8, 16  # blocks

# Clusters of a size that an H200's 132 SMs run at a time where an SM holds one block, as its driver counts them: SMs
# are left over in each part of the chip, and one cluster more waits for a whole round.
H200_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 8: 15, 14: 7, 16: 7}
H200_SMS = 132


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
        return f"sm_{major}{minor}" + ("a" if self.is_hopper else "")

    @property
    def is_hopper(self) -> bool:
        """Whether the GPU has Hopper's own instructions: wgmma and bulk copies."""
        return self.compute_capability == (9, 0)

    @property
    def l2_bytes(self) -> int:
        """The L2 cache that the kernels' eviction policy counts on."""
        return L2_BYTES

    @property
    def max_cluster_blocks(self) -> int:
        """The most blocks of a cluster: 8 on every GPU that has clusters, 16 on a whole H100 or H200."""
        if not self.has_clusters:
            return 1
        return MAX_CLUSTER if self.is_hopper and self.sm_count >= H200_SMS else PORTABLE_CLUSTER

    def clusters_at_a_time(self, blocks: int) -> int:
        """Clusters of so many blocks that the GPU runs at a time where an SM holds one block."""
        return self.sm_count * H200_CLUSTERS[blocks] // H200_SMS

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can be launched as clusters that read each other's shared memory."""
        return self.compute_capability >= (9, 0)

    @property
    def shared_bytes_per_sm(self) -> int:
        """Shared memory of a streaming multiprocessor."""
        if self.compute_capability in ((8, 0), (8, 7)):
            return 164 * KIB
        return (228 if self.compute_capability[0] in (9, 10, 11) else 100) * KIB

    @property
    def shared_bytes_per_block(self) -> int:
        """What one block may ask for."""
        return self.shared_bytes_per_sm - SHARED_BYTES_OF_SYSTEM

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks of these needs (registers: of a thread) that a streaming multiprocessor holds at a time."""
        by_registers = REGISTERS_PER_SM // (threads * registers)
        by_shared = self.shared_bytes_per_sm // (shared_bytes + SHARED_BYTES_OF_SYSTEM)
        return max(1, min(by_registers, by_shared))

    def shared_bytes_that_hold(self, resident: int) -> int:
        """The least shared memory of a block of which an SM holds no more than `resident`."""
        return self.shared_bytes_per_sm // (resident + 1) - SHARED_BYTES_OF_SYSTEM + SHARED_UNIT


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
