"""Contenders without a GPU: the CPU's algorithms, and what of the others is plain logic."""

import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from cuconv import ConvProblem
from harness import libcudnn
from harness.contenders import cpu, cublas, cudnn_classic, cudnn_engines, torch_cudnn
from harness.contenders.base import PLAIN, NotRunnable, Operands, Unavailable, load
from harness.contenders.registry import CLASSIC_ALGORITHMS, PROVIDERS

PROBLEMS = [  # h != w everywhere; one input and several, channels odd and prime
    ConvProblem(1, 1, 1, 2, 1, 1, 1),
    ConvProblem(3, 17, 5, 9, 7, 1, 1),
    ConvProblem(2, 5, 9, 4, 13, 3, 3, 1, 1),
    ConvProblem(1, 7, 8, 11, 3, 3, 5, 0, 2),
    ConvProblem(4, 3, 13, 6, 5, 5, 5, 2, 2),
    ConvProblem(2, 11, 7, 10, 2, 7, 7, 3, 3),
    ConvProblem(1, 64, 9, 7, 6, 7, 7),
]


def operands_of(problem: ConvProblem) -> Operands:
    operands = Operands.random(problem, torch.Generator().manual_seed(1))
    operands.output.fill_(torch.nan)
    return operands


def truth_of(problem: ConvProblem, operands: Operands) -> torch.Tensor:
    return F.conv2d(operands.input.double(), operands.weight.double(), padding=(problem.pad_h, problem.pad_w))


def rel_l2(output: torch.Tensor, truth: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(output.double() - truth) / torch.linalg.vector_norm(truth))


def prepare(algorithm: str, problem: ConvProblem, operands: Operands):
    offers = {offer.algorithm: offer for offer in cpu.Contender().offers(problem, operands)}
    return offers[algorithm].prepare()


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("algorithm", PROVIDERS["cpu"].algorithms)
def test_against_float64(algorithm, problem):
    operands = operands_of(problem)
    output = prepare(algorithm, problem, operands).call()
    assert tuple(output.shape) == problem.output_shape and output.dtype == torch.float32
    assert rel_l2(output, truth_of(problem, operands)) < 1e-5


def test_offers_are_those_of_the_registry():
    problem = PROBLEMS[0]
    offers = load("cpu").offers(problem, operands_of(problem))
    assert tuple(offer.algorithm for offer in offers) == PROVIDERS["cpu"].algorithms
    assert {(offer.provider, offer.precision) for offer in offers} == {("cpu", "fp32")}


@pytest.mark.parametrize(
    ("algorithm", "problem", "needed"),
    # Four bytes for each of 9 planes of (2, 13, 9, 4); eight for each of 11 x 4 frequencies of 10 + 65 + 26 maps.
    [
        ("two_stage", PROBLEMS[2], 4 * 9 * 2 * 13 * 9 * 4),
        ("fft", PROBLEMS[2], 8 * 11 * 4 * (10 + 65 + 26)),
        ("two_stage", PROBLEMS[1], 0),
    ],
)
def test_a_call_says_how_much_workspace_it_needs(algorithm, problem, needed):
    assert prepare(algorithm, problem, operands_of(problem)).workspace_bytes == needed


def test_without_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(NotRunnable) as refusal:
        prepare("onednn", PROBLEMS[0], operands_of(PROBLEMS[0]))
    assert refusal.value.status == "unsupported"


@pytest.mark.parametrize(
    ("algorithm", "function", "enabled"), [("onednn", "mkldnn_convolution", True), ("native", "conv2d", False)]
)
def test_onednn_is_set_for_the_call_only(monkeypatch, algorithm, function, enabled):
    def settings():
        return torch.backends.mkldnn.enabled, torch.backends.mkldnn.conv.fp32_precision

    seen, before = [], settings()
    module = torch if algorithm == "onednn" else F
    monkeypatch.setattr(module, function, lambda *_, **__: seen.append(settings()))
    prepare(algorithm, PROBLEMS[0], operands_of(PROBLEMS[0])).call()
    assert seen == [(enabled, "ieee")]
    assert settings() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("provider", [name for name, provider in PROVIDERS.items() if provider.device == "cuda"])
def test_gpu_contenders_are_unavailable_without_a_gpu(provider):
    with pytest.raises(Unavailable):
        load(provider)


def test_the_loaded_cudnn_is_that_of_torch():
    found = libcudnn.loaded()
    if torch.backends.cudnn.is_available():
        assert "libcudnn" in found[0] and found[1] == torch.backends.cudnn.version()
    else:
        assert found is None
        with pytest.raises(Unavailable):
            cudnn_classic._library()


@pytest.mark.parametrize(
    ("code", "status"),
    [(2000, "error"), (3000, "unsupported"), (3014, "unsupported"), (4000, "error"), (5000, "error")],
)
def test_cudnn_status_becomes_a_row_status(code, status):
    library = SimpleNamespace(cudnnGetErrorString=lambda code: b"CUDNN_STATUS_SOMETHING")
    with pytest.raises(NotRunnable) as refusal:
        cudnn_classic._check(library, code)
    assert refusal.value.status == status
    assert f"CUDNN_STATUS_SOMETHING({code})" in str(refusal.value)
    cudnn_classic._check(library, 0)


@pytest.mark.parametrize(("precision", "math"), [("fp32", 3), ("tf32", 0)])  # CUDNN_FMA_MATH, CUDNN_DEFAULT_MATH
def test_a_classic_call_is_told_what_it_may_round_to(precision, math):
    class Library:
        """A library whose calls all succeed; it keeps the math type that is set."""

        def __getattr__(self, name):
            return lambda *_: 0

        def cudnnSetConvolutionMathType(self, convolution, math):
            self.math = math
            return 0

    library = Library()
    cudnn_classic._Case(library, PROBLEMS[1], precision)
    assert library.math == math


def test_classic_names_are_in_the_order_of_cudnn():
    """The position of a name is the number that cuDNN knows the algorithm by."""
    numbers = {"implicit_gemm": 0, "implicit_precomp_gemm": 1, "gemm": 2, "direct": 3}
    numbers |= {"fft": 4, "fft_tiling": 5, "winograd": 6, "winograd_nonfused": 7}
    assert {name: number for number, name in enumerate(CLASSIC_ALGORITHMS)} == numbers


@pytest.mark.parametrize("name", torch_cudnn.MODES)
@pytest.mark.parametrize(("precision", "theirs"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_torch_settings_are_set_for_the_call_only(name, precision, theirs):
    cudnn = torch.backends.cudnn

    def settings():
        return cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, cudnn.conv.fp32_precision

    before = settings()
    with torch_cudnn._settings(torch_cudnn.MODES[name], precision):
        assert settings() == (True, name == "benchmark", 0, name == "deterministic", theirs)
    assert settings() == before


@pytest.mark.parametrize(("precision", "theirs"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_cublas_computes_a_1x1_layer_and_is_told_its_precision_for_the_call_only(monkeypatch, precision, theirs):
    matmul, bmm, seen = torch.backends.cuda.matmul, torch.bmm, []
    before, problem = matmul.fp32_precision, PROBLEMS[1]
    monkeypatch.setattr(cublas, "measured_workspace", lambda call: 0)
    monkeypatch.setattr(torch, "bmm", lambda *args, **out: seen.append(matmul.fp32_precision) or bmm(*args, **out))
    operands = operands_of(problem)
    output = cublas._prepare(precision, problem, operands).call()
    assert output is operands.output and rel_l2(output, truth_of(problem, operands)) < 1e-6
    assert set(seen) == {theirs} and matmul.fp32_precision == before


@pytest.mark.parametrize(
    "problem", [ConvProblem(1, 3, 5, 5, 2, *layer) for layer in ((3, 3, 1, 1), (1, 2), (1, 1, 1, 1))], ids=str
)
def test_cublas_computes_neither_another_filter_nor_padding(problem):
    with pytest.raises(NotRunnable) as refusal:
        cublas._prepare("fp32", problem, operands_of(problem))
    assert refusal.value.status == "unsupported"


class Refused(Exception):
    """Stands for cudnnGraphNotSupportedError."""


class FakeGraph:
    """Plans by engine, name and outcome of the build. No heuristic names 2, 4 and 5; 5 has no configuration."""

    def __init__(self):
        self.plans = [
            (0, "eng0", ""),
            (1, "eng1_k2=1", ""),
            (67, "eng67", "Deselecting execution plan"),
            (1, "eng1_k2=1", ""),
            (3, "eng3_k11=2", "No kernel\n  for this shape"),
        ]
        self.built, self.filtered = [], None

    def create_execution_plans(self, modes):
        assert modes == ["A", "B", "FALLBACK"]

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_engine_and_knobs_at_index(self, index):
        return self.plans[index][0], {}

    def get_engine_count(self):
        return 6

    def create_execution_plan(self, engine, knobs):
        if engine == 5:
            raise Refused("no configuration")
        self.plans.append((engine, f"eng{engine}", ""))

    def deselect_numeric_notes(self, notes):
        self.filtered = "without", notes, len(self.plans)

    def select_numeric_notes(self, notes):
        self.filtered = "with", notes, len(self.plans)

    def get_plan_name_at_index(self, index):
        return self.plans[index][1]

    def build_plan_at_index(self, index):
        self.built.append(index)
        if self.plans[index][2]:
            raise Refused(self.plans[index][2])


@pytest.fixture(params=["fp32"])
def plans(monkeypatch, request):
    cudnn = SimpleNamespace(
        cudnnGraphNotSupportedError=Refused,
        heur_mode=SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK"),
        numerical_note=SimpleNamespace(DOWN_CONVERT_INPUTS="rounded inputs", TENSOR_CORE="tensor cores"),
    )
    monkeypatch.setattr(cudnn_engines, "_graph", lambda *_: (FakeGraph(), ("x", "w", "y")))
    plans = cudnn_engines._Plans(cudnn, None, None, PROBLEMS[0])
    plans.exclude_other_precision(request.param)
    return plans


def test_engines_are_distinct_plans_of_the_class(plans):
    assert plans.distinct() == [
        ("eng0", 0, ""),
        ("eng1_k2=1", 1, ""),
        ("eng3_k11=2", 4, "No kernel for this shape"),
        ("eng2", 5, ""),
        ("eng4", 6, ""),
    ]
    assert 3 not in plans._graph.built, "a plan was built twice"


@pytest.mark.parametrize(
    ("plans", "kept"),
    [("fp32", ("without", ["rounded inputs"], 7)), ("tf32", ("with", ["tensor cores"], 7))],
    indirect=["plans"],
)
def test_the_other_class_is_excluded_after_every_plan_is_there(plans, kept):
    assert plans._graph.filtered == kept


class NotedGraph(FakeGraph):
    """Plans of engines with notes: 1 has both, 2 one and cannot be built, 3 none, and 4 has no plan."""

    NOTES: ClassVar = {1: {"fft", "tensor"}, 2: {"fft"}, 3: set()}

    def __init__(self):
        super().__init__()
        self.plans = []

    def create_execution_plan(self, engine, knobs):
        if engine not in self.NOTES:
            raise Refused("no configuration")
        self.plans.append((engine, "", "No kernel" if engine == 2 else ""))

    def select_numeric_notes(self, notes):
        self.plans = [
            (engine, "", failure if notes[0] in self.NOTES[engine] else "Deselecting execution plan")
            for engine, _, failure in self.plans
        ]


def test_an_engine_has_the_notes_that_its_plans_are_selected_by(monkeypatch):
    graphs = []
    monkeypatch.setattr(cudnn_engines, "_graph", lambda *_: (graphs.append(NotedGraph()) or graphs[-1], ()))
    notes = SimpleNamespace(__members__={"FFT": "fft", "TENSOR_CORE": "tensor"})
    asked = cudnn_engines._Notes(SimpleNamespace(cudnnGraphNotSupportedError=Refused, numerical_note=notes), None)
    engines = [(1, {}), (2, {}), (1, {}), (3, {}), (4, {})]
    found = asked.of(engines, PROBLEMS[0], PLAIN, "")
    both, fft, none = "numerical notes FFT, TENSOR_CORE", "numerical notes FFT", "no numerical note"
    assert found == [both, fft, both, none, ""]
    assert asked.of(engines, PROBLEMS[1], PLAIN, "") == found and len(graphs) == 2, "asked for twice"


@pytest.fixture
def engines(monkeypatch):
    """The contender in FP16 on a made-up cuDNN, and the graphs that it makes: one for each layout, without notes."""
    graphs = []
    cudnn = SimpleNamespace(
        cudnnGraphNotSupportedError=Refused,
        heur_mode=SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK"),
        numerical_note=SimpleNamespace(__members__={}),
        backend_version=torch.backends.cudnn.version,
        create_handle=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    monkeypatch.setattr(cudnn_engines, "_graph", lambda *_: (graphs.append(FakeGraph()) or graphs[-1], ()))
    return cudnn_engines.Contender("fp16"), graphs


def test_plans_that_were_built_ahead_are_offered_once_and_for_their_case_alone(engines):
    contender, graphs = engines
    contender.get_ready(PROBLEMS[1])
    ahead = [offer.algorithm for offer in contender.offers(PROBLEMS[1], operands_of(PROBLEMS[1]))]
    assert len(graphs) == 2 and {"eng1", "eng4_nhwc"} <= set(ahead)
    assert [offer.algorithm for offer in contender.offers(PROBLEMS[1], operands_of(PROBLEMS[1]))] == ahead
    assert len(graphs) == 4
    contender.get_ready(PROBLEMS[2])
    contender.offers(PROBLEMS[1], operands_of(PROBLEMS[1]))
    assert len(graphs) == 8, "plans of another case were offered"


def test_only_plans_of_measured_engines_are_built(engines):
    contender, graphs = engines
    contender.begin([], frozenset({"auto", "eng3", "eng1_nhwc", "eng4_nhwc"}))
    offers = contender.offers(PROBLEMS[0], operands_of(PROBLEMS[0]))
    assert [offer.algorithm for offer in offers] == ["eng3", "eng1_nhwc", "eng4_nhwc"]
    names = [[graph.plans[index][1] for index in graph.built] for graph in graphs]
    assert names == [["eng3_k11=2"], ["eng1_k2=1", "eng4"]]


def test_a_plan_that_cannot_be_built_says_why(plans):
    with pytest.raises(NotRunnable, match="No kernel for this shape") as refusal:
        plans.prepare(4, operands_of(PROBLEMS[0]), "No kernel for this shape")
    assert refusal.value.status == "unsupported"
