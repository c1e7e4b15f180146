"""Which versions of NVRTC are checked for registers and spills."""

import pytest
from cuda.bindings import nvrtc

checks_registers = pytest.mark.xfail(
    nvrtc.nvrtcVersion()[1:] < (13, 4),
    reason="kernels are written for NVRTC 13.4 and newer: by an older one some spill up to 184 bytes a thread",
)
