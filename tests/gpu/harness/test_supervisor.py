"""A kernel that breaks the CUDA context of a sweep costs its own row, and the sweep goes on in another process."""

import cupy
import torch

from harness import isolation
from harness.cases.catalogue import load_sweep
from harness.contenders.base import Contender, Offer, Prepared
from harness.sweep import supervisor
from harness.sweep.one_case import Options
from harness.sweep.records import ResultsFolder, read
from harness.sweep.work import Choice, OwnWork

NOWHERE = 'extern "C" __global__ void write_nowhere(int* address) { *address = 1; }'
FOREVER = 'extern "C" __global__ void spin(volatile int* flag) { while (*flag == 0) {} }'
BATCHES = [1, 2, 3]


class Contender(Contender):
    """An algorithm that is right, and some that break: an illegal address, a kernel without an end, too much memory."""

    def offers(self, problem, operands):
        def right():
            operands.output.copy_(torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h))
            return operands.output

        def illegal_address():
            cupy.RawKernel(NOWHERE, "write_nowhere")((1,), (1,), (cupy.uint64(8),))
            return right()

        def hang():
            cupy.RawKernel(FOREVER, "spin")((1,), (1,), (cupy.zeros(1, dtype=cupy.int32),))
            return right()

        def out_of_memory():
            return torch.empty(2**42, device="cuda")

        calls = (right, illegal_address, hang, out_of_memory)
        return [Offer("torch", call.__name__, lambda call=call: Prepared(call, 0)) for call in calls]


def load(providers, precision, say):
    """The contenders, made in the process that measures."""
    return {"torch": Contender()}


def test_what_breaks_a_gpu_costs_its_own_row(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "LIMIT_S", 20.0)
    monkeypatch.setattr(isolation, "START", "spawn")
    sweep = load_sweep("smoke", layers=["5a_5x5red"], batches=BATCHES)
    options = Options(
        device=torch.device("cuda", torch.cuda.current_device()), providers=("torch",), algorithms=None, runs=2, seed=0,
        workspace_limit=2**30, environment="test", device_slug="nvidia-test",
    )  # fmt: skip
    with ResultsFolder(tmp_path) as folder:
        problems = [case.problem for case in sweep.cases]
        supervisor.run(problems, OwnWork(sweep, Choice({}), folder), options, load)
    rows = read(tmp_path / "measurements.csv").set_index(["algorithm", "batch"]).sort_index()
    expected = {"right": "ok", "out_of_memory": "error", "illegal_address": "error"}
    for algorithm, status in expected.items():
        assert list(rows.status[algorithm]) == [status] * len(BATCHES), algorithm
    assert list(rows.status["hang"]) == ["timeout", "timeout", "error"]
    details = list(rows.detail["illegal_address"])
    assert "broke the CUDA context" in details[0] and details[2].startswith("not tried: it ended 2 processes")
