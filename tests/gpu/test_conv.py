"""conv2d on a GPU as users call it: both array libraries, streams, graphs, threads, and what it refuses."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from tests.gpu.problems import TOLERANCE, bias_for, operands, poisoned_output, rel_l2_error

cupy = pytest.importorskip("cupy")

PROBLEM = ConvProblem(2, 12, 14, 9, 20, 3, 3, 1, 1)


@pytest.fixture
def case():
    x, weight = operands(PROBLEM)
    return x, weight, reference.conv2d(x, weight, (1, 1))


def test_torch_in_torch_out(case):
    x, weight, truth = case
    out = conv2d(x, weight, padding=1)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32 and out.device == x.device
    assert rel_l2_error(out, truth) < TOLERANCE


def test_cupy_in_cupy_out(case):
    x, weight, truth = case
    out = conv2d(cupy.from_dlpack(x), cupy.from_dlpack(weight), padding="same")
    assert isinstance(out, cupy.ndarray) and out.dtype == cupy.float32
    assert rel_l2_error(torch.from_dlpack(out), truth) < TOLERANCE


def test_bias_and_relu_of_torch_and_cupy(case):
    x, weight, _ = case
    bias = bias_for(PROBLEM)
    truth = reference.conv2d(x, weight, (1, 1), bias, True)
    assert rel_l2_error(conv2d(x, weight, bias, padding=1, relu=True), truth) < TOLERANCE
    arrays = [cupy.from_dlpack(tensor) for tensor in (x, weight, bias)]
    assert rel_l2_error(torch.from_dlpack(conv2d(*arrays, padding=1, relu=True)), truth) < TOLERANCE


@pytest.mark.parametrize("padding", [1, (1, 1), [1, 1], "same"])
def test_kinds_of_padding(case, padding):
    x, weight, truth = case
    assert rel_l2_error(conv2d(x, weight, padding=padding), truth) < TOLERANCE


def test_without_padding(case):
    x, weight, _ = case
    assert rel_l2_error(conv2d(x, weight, padding="valid"), reference.conv2d(x, weight)) < TOLERANCE


def test_out_is_written_and_returned(case):
    x, weight, truth = case
    out = poisoned_output(PROBLEM)
    assert conv2d(x, weight, padding=1, out=out) is out
    assert rel_l2_error(out, truth) < TOLERANCE


def test_torch_stream_is_followed(case):
    """The call waits for work on its own side stream, and synchronises with nothing else."""
    x, weight, truth = case
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        out = conv2d(late, weight, padding=1)
        assert not stream.query(), "the call must not synchronise"
    torch.cuda.current_stream().wait_stream(stream)
    assert rel_l2_error(out, truth) < TOLERANCE


def test_cupy_stream_is_followed(case):
    x, weight, truth = case
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with stream:
        late = cupy.zeros(x.shape, cupy.float32)
        torch_view = torch.cuda.ExternalStream(stream.ptr)
        with torch.cuda.stream(torch_view):
            torch.cuda._sleep(100_000_000)
        late[...] = cupy.from_dlpack(x)
        out = conv2d(late, cupy.from_dlpack(weight), padding=1)
    stream.synchronize()
    assert rel_l2_error(torch.from_dlpack(out), truth) < TOLERANCE


@pytest.mark.parametrize("k", [1, 3])
def test_graph_capture_sees_new_data_at_each_replay(k):
    problem = ConvProblem(2, 12, 14, 9, 20, k, k, k // 2, k // 2)
    x, weight = operands(problem)
    bias = bias_for(problem)
    conv2d(x, weight, bias, padding=k // 2, relu=True)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain = conv2d(x, weight, padding=k // 2)
        finished = conv2d(x, weight, bias, padding=k // 2, relu=True)
    for seed in (10, 11):
        x.copy_(operands(problem, seed)[0])
        bias.copy_(bias_for(problem, seed))
        for out in (plain, finished):
            out.fill_(torch.nan)
        graph.replay()
        padding = (k // 2, k // 2)
        assert rel_l2_error(plain, reference.conv2d(x, weight, padding)) < TOLERANCE
        assert rel_l2_error(finished, reference.conv2d(x, weight, padding, bias, True)) < TOLERANCE


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_thread_that_never_used_the_gpu_can_call(case, library):
    """A new thread has GPU 0 as its current GPU, but no context of it."""
    x, weight, truth = case
    arrays = [x, weight, poisoned_output(PROBLEM)]
    if library == "cupy":
        arrays = [cupy.from_dlpack(tensor) for tensor in arrays]
    x, weight, out = arrays
    conv2d(x, weight, padding=1, out=out)  # compiles and loads, and leaves the thread nothing but launches
    out[...] = torch.nan
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(conv2d, x, weight, padding=1, out=out).result()
    torch.cuda.synchronize()
    assert rel_l2_error(torch.from_dlpack(out), truth) < TOLERANCE


def test_threads_on_streams_of_their_own_do_not_meet():
    """Every thread gets the results of its own operands, though shapes and kernels are the same."""

    def differences(seed):
        x, weight = operands(PROBLEM, seed)
        truth = reference.conv2d(x, weight, (1, 1))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            outputs = [conv2d(x, weight, padding=1) for _ in range(200)]
        stream.synchronize()
        return max(rel_l2_error(out, truth) for out in outputs)

    with ThreadPoolExecutor(8) as threads:
        assert max(threads.map(differences, range(8))) < TOLERANCE


def test_a_call_like_one_before_is_checked_as_that_was(case):
    x, weight, truth = case
    out = poisoned_output(PROBLEM)
    for _ in range(2):
        assert rel_l2_error(conv2d(x, weight, padding=1, out=out), truth) < TOLERANCE
        with pytest.raises(UnsupportedProblem, match="out overlaps input"):
            conv2d(out.flatten()[: x.numel()].view(x.shape), weight, padding=1, out=out)
        with pytest.raises(UnsupportedProblem, match="weight is not contiguous"):
            conv2d(x, weight.transpose(2, 3), padding=1)
        with torch.enable_grad(), pytest.raises(UnsupportedProblem, match="weight requires a gradient"):
            conv2d(x, weight.clone().requires_grad_(), padding=1)


def test_torch_has_the_private_functions_that_make_calls_cheap():
    """Public functions take their place where they are missing, at a higher cost of every call."""
    torch.zeros(1, device="cuda")
    assert callable(torch._C._cuda_getCurrentRawStream) and callable(torch._C._cuda_getDevice)
    assert callable(torch._C._dynamo.guards._empty_strided_cuda)


@pytest.mark.parametrize("inference", [False, True])
def test_an_output_is_a_tensor_like_any_other(case, inference):
    x, weight, _ = case
    with torch.inference_mode(inference):
        for _ in range(2):
            out = conv2d(x, weight, padding=1)
            assert out.is_inference() == inference and out.is_contiguous() and not out.requires_grad
            assert (out.shape, out.device) == (PROBLEM.output_shape, x.device)


def bad_calls():
    x, weight = torch.zeros(2, 4, 6, 6, device="cuda"), torch.zeros(8, 4, 3, 3, device="cuda")
    out = torch.zeros(2, 8, 6, 6, device="cuda")
    memory = torch.zeros(2 * 4 * 6 * 6 + 2 * 8 * 6 * 6, device="cuda")
    bias = torch.zeros(8, device="cuda")
    return {
        "input is torch.float64": (x.double(), weight, {}),
        "weight is torch.float16": (x, weight.half(), {}),
        "weight is on cpu": (x, weight.cpu(), {}),
        "input is not contiguous": (x.transpose(2, 3), weight, {}),
        "weight is not contiguous": (x, weight.transpose(2, 3), {}),
        "weight is float32 in channels last": (x, weight.to(memory_format=torch.channels_last), {}),
        "weight has 3 dimensions": (x, weight[0], {}),
        "stride_h=0": (x, weight, {"stride": 0}),
        "dilation=1.0: must be a whole number": (x, weight, {"dilation": 1.0}),
        "groups=3: the input needs 4 for each group": (x, weight, {"groups": 3}),
        "weight has 5 channels, input 4": (x, torch.zeros(8, 5, 3, 3, device="cuda"), {}),
        "n=0: every size must be at least 1": (x[:0], weight, {}),
        "filter 3x3 is larger than the padded input 2x2": (x[:, :, :2, :2].contiguous(), weight, {"padding": 0}),
        "padding=1.5": (x, weight, {"padding": 1.5}),
        "padding='full'": (x, weight, {"padding": "full"}),
        "pad_h=-1": (x, weight, {"padding": -1}),
        r"padding=\(\(0, 1\), \(0, -1\)\)": (x, weight, {"padding": ((0, 1), (0, -1))}),
        r"out has shape \(2, 8, 5, 6\)": (x, weight, {"out": out[:, :, 1:].contiguous()}),
        "out is torch.float64": (x, weight, {"out": out.double()}),
        "out overlaps input": (memory[:288].view(x.shape), weight, {"out": memory[100:676].view(out.shape)}),
        "out overlaps bias": (x, weight, {"out": memory[:576].view(out.shape), "bias": memory[575:583]}),
        r"bias has 4 dimensions \(1, 8, 1, 1\): 1 is needed": (x, weight, {"bias": bias.view(1, 8, 1, 1)}),
        r"bias has shape \(4,\): it must be \(8,\)": (x, weight, {"bias": bias[:4]}),
        "bias is torch.float64": (x, weight, {"bias": bias.double()}),
        "bias is on cpu": (x, weight, {"bias": bias.cpu()}),
        "bias is not contiguous": (x, weight, {"bias": memory[:16:2]}),
        "bias requires a gradient": (x, weight, {"bias": bias.clone().requires_grad_()}),
        "algorithm='magic'": (x, weight, {"algorithm": "magic"}),
        "input requires a gradient": (x.clone().requires_grad_(), weight, {}),
    }


@pytest.mark.parametrize(
    "message",
    list(bad_calls()) if torch.cuda.is_available() else ["without a GPU"],
)
def test_what_is_refused(message):
    x, weight, options = bad_calls()[message]
    with torch.enable_grad(), pytest.raises(ValueError, match=message):
        conv2d(x, weight, **({"padding": 1} | options))


def test_one_library_at_a_time(case):
    x, weight, _ = case
    with pytest.raises(TypeError, match="weight is a cupy"):
        conv2d(x, cupy.from_dlpack(weight))
    with pytest.raises(TypeError, match="bias is a cupy"):
        conv2d(x, weight, cupy.zeros(PROBLEM.m, "f4"))
    with pytest.raises(TypeError, match=r"bias is a builtins\.float"):
        conv2d(x, weight, 0.5)


def test_cupy_arrays_are_checked(case):
    x, weight, _ = case
    x, weight = cupy.from_dlpack(x), cupy.from_dlpack(weight)
    with pytest.raises(UnsupportedProblem, match="input is float64"):
        conv2d(x.astype("f8"), weight)
    with pytest.raises(UnsupportedProblem, match="input is not contiguous"):
        conv2d(x.transpose(0, 1, 3, 2), weight)
    with pytest.raises(UnsupportedProblem, match="bias is float64"):
        conv2d(x, weight, cupy.zeros(PROBLEM.m, "f8"), padding=1)
    with pytest.raises(UnsupportedProblem, match=r"bias has shape \(3,\)"):
        conv2d(x, weight, cupy.zeros(3, "f4"), padding=1)


def test_a_module_parameter_works_without_gradients(case):
    x, weight, truth = case
    parameter = torch.nn.Parameter(weight)
    with torch.enable_grad(), torch.no_grad():
        assert rel_l2_error(conv2d(x, parameter, padding=1), truth) < TOLERANCE
