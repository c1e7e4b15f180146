"""The table of public names is that of the imported library."""

import inspect

import pytest
import torch

import cuconv.nn
from harness.report.api import api_table
from tests.harness.report.helpers import cells

NAMES = {
    f"{module.__name__}.{name}": getattr(module, name) for module in (cuconv, cuconv.nn) for name in module.__all__
}


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_has_its_arguments_and_a_sentence(name):
    call, what = cells(api_table())[f"`{name}`"]
    assert what.endswith(".")
    value = NAMES[name]
    if inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, torch.nn.Module)):
        arguments = eval(f"lambda {call.strip('`()')}: None")
        expected = inspect.signature(value).parameters.values()
        found = inspect.signature(arguments).parameters.values()
        assert [(one.name, one.kind, one.default) for one in found] == [
            (one.name, one.kind, one.default) for one in expected
        ]
