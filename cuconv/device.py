"""GPUs as plain data, so that choosing an algorithm is a pure function of problem and device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from cuconv.core.elementwise import Number
from cuconv.core.problem import shown
from cuconv.runtime import driver

MINIMUM_COMPUTE_CAPABILITY = (8, 0)

KIB = 1024
SYSTEM_SHARED_BYTES = KIB  # shared memory that the driver takes for each resident block
SHARED_BYTES_UNIT = 128  # the granularity of shared memory allocations
REGISTERS_PER_SM, THREADS_PER_SM, BLOCKS_PER_SM = 64 * KIB, 2048, 32
SECTOR_FLOATS = 8  # floats of a sector, which the L2 cache reads and writes at once
L2_BYTES = 50 * 1024 * KIB  # the L2 cache of an H100; an H200 has 60 MiB
PORTABLE_CLUSTER_BLOCKS = 8  # the most blocks of a cluster that every GPU with clusters grants
MAX_CLUSTER_BLOCKS = 16  # the most that a whole H100 or H200 grants a kernel that asks for it

# By the blocks of a cluster: the clusters that an H200's 132 SMs run at a time with one block per SM, as its driver
# counts them. A cluster stays within one part of the chip (GPC), so some SMs of each part are left over.
H200_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 8: 15, 14: 7, 16: 7}
H200_SMS = 132
_CLUSTERS = np.zeros(MAX_CLUSTER_BLOCKS + 1, int)  # the same as an array
_CLUSTERS[list(H200_CLUSTERS)] = list(H200_CLUSTERS.values())


class UnsupportedDevice(RuntimeError):
    """The GPU is older than those that the kernels are written for."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A GPU: its name, compute capability and number of streaming multiprocessors."""

    name: str
    compute_capability: tuple[int, int]
    sm_count: int

    @property
    def arch(self) -> str:
        """The compiler's name of the target, such as "sm_90a"; Hopper's own instructions need the "a"."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}" + ("a" if self.is_hopper else "")

    @property
    def is_hopper(self) -> bool:
        """Whether the GPU has Hopper's own instructions: wgmma and bulk copies."""
        return self.compute_capability == (9, 0)

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can be launched as clusters, whose blocks read each other's shared memory."""
        return self.compute_capability >= (9, 0)

    @property
    def has_dependent_launch(self) -> bool:
        """Whether a kernel may start before the one ahead of it ends (programmatic dependent launch)."""
        return self.compute_capability >= (9, 0)

    @property
    def max_cluster_blocks(self) -> int:
        """The most blocks of a cluster: 1 without clusters, 16 on a whole H100 or H200, 8 on other GPUs."""
        if not self.has_clusters:
            return 1
        return MAX_CLUSTER_BLOCKS if self.is_hopper and self.sm_count >= H200_SMS else PORTABLE_CLUSTER_BLOCKS

    def clusters_at_a_time(self, blocks: Number) -> Number:
        """The clusters of a number of blocks that the GPU runs at a time with one block per SM.

        An H200's count is scaled by the number of SMs. blocks: keys of H200_CLUSTERS, or an array of them.
        """
        return self.sm_count * _CLUSTERS[blocks] // H200_SMS

    @property
    def shared_bytes_per_sm(self) -> int:
        """Shared memory of a streaming multiprocessor (SM), in bytes."""
        if self.compute_capability in ((8, 0), (8, 7)):
            return 164 * KIB
        return (228 if self.compute_capability[0] in (9, 10, 11) else 100) * KIB

    @property
    def shared_bytes_per_block(self) -> int:
        """The most shared memory that one block may ask for, in bytes."""
        return self.shared_bytes_per_sm - SYSTEM_SHARED_BYTES

    def shared_bytes_of(self, resident: int) -> int:
        """Shared memory in bytes that each of so many blocks of an SM may have."""
        share = self.shared_bytes_per_sm // resident
        return share // SHARED_BYTES_UNIT * SHARED_BYTES_UNIT - SYSTEM_SHARED_BYTES

    def resident_blocks(self, threads: Number, registers: Number, shared_bytes: Number) -> Number:
        """The occupancy: blocks that an SM holds at a time, at least 1.

        threads: threads of a block. registers: registers of a thread. shared_bytes: shared memory of a block.
        """
        by_registers = REGISTERS_PER_SM // (threads * registers)
        by_shared = self.shared_bytes_per_sm // (shared_bytes + SYSTEM_SHARED_BYTES)
        return np.maximum(1, np.minimum(by_registers, by_shared))

    def shared_bytes_that_hold(self, resident: Number) -> Number:
        """The least shared memory of a block, in bytes, that limits an SM to `resident` blocks at a time."""
        return self.shared_bytes_per_sm // (resident + 1) - SYSTEM_SHARED_BYTES + SHARED_BYTES_UNIT


H200 = DeviceSpec("NVIDIA H200", (9, 0), 132)
A100 = DeviceSpec("NVIDIA A100-SXM4-80GB", (8, 0), 108)


@cache
def device_spec(index: int) -> DeviceSpec:
    """The DeviceSpec of a GPU by its ordinal; raises UnsupportedDevice below compute capability 8.0."""
    spec = DeviceSpec(*driver.gpu(index))
    if spec.compute_capability < MINIMUM_COMPUTE_CAPABILITY:
        raise UnsupportedDevice(
            f"{spec.name} has compute capability {spec.compute_capability[0]}.{spec.compute_capability[1]}: "
            "cuConv needs 8.0 or higher"
        )
    return spec


def spec_given(device: DeviceSpec | int | None) -> DeviceSpec:
    """The DeviceSpec that an argument names: one itself, a GPU by its ordinal, or None for the current GPU.

    Raises TypeError for anything else.
    """
    if isinstance(device, bool) or not isinstance(device, (DeviceSpec, int, type(None))):
        raise TypeError(f"device={shown(device)}: must be a DeviceSpec, a GPU's ordinal, or None")
    if isinstance(device, DeviceSpec):
        return device
    return device_spec(driver.current_gpu() if device is None else device)
