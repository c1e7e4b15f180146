"""The compiled kernels of Hopper, by a sample of them, are few enough for one wheel."""

from cuconv import shipped
from cuconv.algorithms import kernel_set
from cuconv.runtime import compiler
from release.wheel import HOME, MAX_MIB

STEP = 5  # every fifth kernel, in the order of the algorithms


def test_hopper_s_kernels_fit_a_wheel(tmp_path):
    sample = kernel_set.variants(HOME)[::STEP]
    path = tmp_path / f"{HOME}.zip"
    shipped.write(path, ((compiler.variant_name(kernel), compiler.cubin(kernel)) for kernel in sample))
    assert STEP * path.stat().st_size <= MAX_MIB * 2**20
