"""Who takes part: name, order, colour and role of every provider and algorithm, defined here once.

A speedup compares a *subject* (ours) with the best of its *rivals*. On a GPU the rivals are all of cuDNN
(classic calls, graph-API engines, torch's selection); cuBLAS is shown beside them. On a CPU the subject is
cuConv's two stages written in torch, and the rivals are torch's own convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.precision import FP32, PRECISIONS


@dataclass(frozen=True, slots=True)
class Provider:
    """A contender: the name used in the CSV and on the command line, and how it is shown."""

    name: str
    label: str
    device: str  # "cuda" or "cpu"
    module: str  # under harness.contenders
    algorithms: tuple[str, ...]  # in order of display; empty where they are discovered per case
    precisions: tuple[str, ...] = (FP32,)  # the accuracy classes that it can be measured in


CLASSIC_ALGORITHMS = (
    "implicit_gemm",
    "implicit_precomp_gemm",
    "gemm",
    "direct",
    "fft",
    "fft_tiling",
    "winograd",
    "winograd_nonfused",
)

PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            "cuconv",
            "cuConv",
            "cuda",
            "cuconv_gpu",
            (
                "auto",
                "fp16x3",
                "fp16x3_pointwise",
                "fp16x3_winograd",
                "tf32x3_wgmma",
                "tf32x3_stationary",
                "tf32x3_shallow",
                "tf32x3_gemm",
                "two_stage",
            ),
            PRECISIONS,
        ),
        Provider("cudnn", "cuDNN", "cuda", "cudnn_classic", CLASSIC_ALGORITHMS, PRECISIONS),
        Provider("cudnn_engine", "cuDNN engine", "cuda", "cudnn_engines", (), PRECISIONS),
        Provider("torch", "torch cuDNN", "cuda", "torch_cudnn", ("default", "benchmark", "deterministic"), PRECISIONS),
        Provider("cublas", "cuBLAS", "cuda", "cublas", ("bmm",), PRECISIONS),
        Provider("cpu", "CPU", "cpu", "cpu", ("two_stage", "onednn", "native", "fft")),
    )
}


def shown(provider: str, algorithm: str) -> str:
    """How an algorithm is called where its provider must be told too."""
    return f"{PROVIDERS[provider].label} {algorithm}"


CUDNN_PROVIDERS = ("cudnn", "cudnn_engine", "torch")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against theirs: `subjects` are algorithms of `provider`; `rivals` are (provider, algorithm) tests."""

    provider: str
    subjects: tuple[str, ...]
    rivals_label: str

    def is_rival(self, provider: str, algorithm: str) -> bool:
        if self.provider == "cpu":
            return provider == "cpu" and algorithm not in self.subjects
        return provider in CUDNN_PROVIDERS


def comparison(device: str) -> Comparison:
    """The comparison that the tables and figures of a device's results make; device "cpu" or a GPU's name.

    On a GPU what a user gets, and the paper's algorithm; the others are in the table of algorithms.
    """
    if device == "cpu":
        return Comparison("cpu", ("two_stage",), "the best torch CPU convolution")
    return Comparison("cuconv", ("auto", "two_stage"), "the best cuDNN")


# One colour for each family of algorithms, wherever it appears.
COLOURS = {
    "cuconv": "#d1495b",
    "implicit_gemm": "#9ecae1",
    "implicit_precomp_gemm": "#3182bd",
    "gemm": "#08519c",
    "direct": "#bdbdbd",
    "fft": "#a1d99b",
    "fft_tiling": "#31a354",
    "winograd": "#fdd0a2",
    "winograd_nonfused": "#fd8d3c",
    "engine": "#756bb1",
    "torch": "#17a2b8",
    "cublas": "#636363",
}


def family(provider: str, algorithm: str) -> str:
    """The key of COLOURS that an algorithm belongs to."""
    if provider in ("cuconv", "torch", "cublas"):
        return provider
    if provider == "cudnn_engine":
        return "engine"
    if provider == "cpu":
        return {"two_stage": "cuconv", "onednn": "implicit_precomp_gemm", "native": "gemm", "fft": "fft"}[algorithm]
    return algorithm
