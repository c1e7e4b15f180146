"""torch's own samples of conv2d, and the operands that it refuses, on conv2d and on the operator of torch."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F

import cuconv.nn
from tests.gpu.problems import TOLERANCE, rel_l2_error

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest, of the extra 'test'")


@cache
def conv2d_info():
    """The entry of torch's own tests for conv2d; importing it takes seconds.

    The import forbids the process to set torch.backends' flags, which tests of other files set. The block undoes that.
    """
    with torch.backends.__allow_nonbracketed_mutation():
        from torch.testing._internal.common_methods_invocations import op_db

    return next(op for op in op_db if op.name == "nn.functional.conv2d")


def samples():
    """Operands on the GPU, options, and the result in float64."""
    for sample in conv2d_info().sample_inputs("cuda", torch.float32):
        operands = (sample.input, *sample.args)
        doubles = [None if tensor is None else tensor.double() for tensor in operands]
        yield operands, sample.kwargs, F.conv2d(*doubles, **sample.kwargs)


def test_conv2d_computes_every_sample():
    computed = 0
    for operands, options, truth in samples():
        output = cuconv.conv2d(*operands, **options)
        assert output.shape == truth.shape and rel_l2_error(output, truth) < TOLERANCE, options
        computed += 1
    assert computed >= 20


def test_the_operator_computes_every_sample():
    for operands, options, truth in samples():
        output = cuconv.nn.conv2d(*operands, **options)
        assert output.shape == truth.shape and rel_l2_error(output, truth) < TOLERANCE, options


def test_a_prepared_layer_computes_every_sample():
    for (x, weight, bias), options, truth in samples():
        output = cuconv.prepare(weight, bias, **options)(x)
        assert output.shape == truth.shape and rel_l2_error(output, truth) < TOLERANCE, options


def test_what_torch_refuses_is_refused_in_one_sentence():
    refused = 0
    for error in conv2d_info().error_inputs("cuda"):
        sample = error.sample_input
        with pytest.raises((ValueError, TypeError)) as refusal:
            cuconv.conv2d(sample.input, *sample.args, **sample.kwargs)
        assert len(str(refusal.value).splitlines()) == 1
        with pytest.raises((RuntimeError, ValueError)):
            cuconv.nn.conv2d(sample.input, *sample.args, **sample.kwargs)
        refused += 1
    assert refused >= 8
