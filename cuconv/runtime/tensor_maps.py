"""Tensor maps: the driver encodes them in memory of the host, and changes the address of a map that exists."""

from __future__ import annotations

import ctypes
from typing import Any

from cuconv.core.launch import TensorMap
from cuconv.core.problem import BF16, FP16, TF32_LAST
from cuconv.runtime import driver

MAP_BYTES = 128
HOST_ALIGNMENT = 64  # bytes; where a map starts in the host's memory
# Values of the driver's enumerations CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion.
TYPES = {FP16: 6, BF16: 9, TF32_LAST: 11}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTION_128_BYTES = 2
NO_INTERLEAVE = ZEROS_OUTSIDE = 0


class EncodedMap:
    """A tensor map in memory that a launch reads; `pointer` is its address on the host."""

    def __init__(self, tensor_map: TensorMap):
        self._memory = ctypes.create_string_buffer(MAP_BYTES + HOST_ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self.pointer = start + -start % HOST_ALIGNMENT
        self._map = tensor_map
        self._address = 0  # none is encoded yet
        self._replace = driver.library().cuTensorMapReplaceAddress
        self._here = ctypes.c_void_p(self.pointer)

    def move(self, address: int) -> None:
        """Let the map be of an operand at this address of the GPU's memory."""
        if address == self._address:
            return
        encoded, self._address = self._address, 0  # whatever interrupts the change, the next call makes it again
        if encoded:
            driver.check(self._replace(self._here, ctypes.c_void_p(address)))
        else:
            self._encode(address)
        self._address = address

    def _encode(self, address: int) -> None:
        one = self._map
        rank = len(one.sizes)
        begin: list[Any] = [
            self._here, TYPES[one.element], rank, ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*one.sizes), (ctypes.c_uint64 * (rank - 1))(*one.strides),
        ]  # fmt: skip
        end = NO_INTERLEAVE, SWIZZLES[one.swizzle], PROMOTION_128_BYTES, ZEROS_OUTSIDE
        if one.corners is None:
            box, steps = (ctypes.c_uint32 * rank)(*one.box), (ctypes.c_uint32 * rank)(*[1] * rank)
            driver.check(driver.library().cuTensorMapEncodeTiled(*begin, box, steps, *end))
        else:
            corners = [(ctypes.c_int * len(corner))(*corner) for corner in one.corners]
            steps = (ctypes.c_uint32 * rank)(1, *one.steps, *[1] * (rank - 3))
            driver.check(driver.library().cuTensorMapEncodeIm2col(*begin, *corners, *one.box, steps, *end))
