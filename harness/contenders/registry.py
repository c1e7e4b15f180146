"""The providers and their algorithms: name, label, order, colour and role, defined here and nowhere else.

A speedup compares a *subject* (ours) with the best of its *rivals*. On a GPU the rivals are all of cuDNN: classic
calls, graph-API engines, torch's selection. Compared apart from them are cuBLAS, the optional contender CUTLASS, and
cuConv on prepared weights, which its rivals pack at every call. On a CPU the subject is the paper's two
stages in plain torch, and the rivals are torch's own convolutions.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from cuconv.algorithms import ALGORITHMS
from cuconv.select import BATCH_INVARIANT
from harness.precision import FP32, MEASURED, PRECISIONS

OWN_VARIABLE, OWN_ALGORITHM = "CUCONV_CONTENDER", "conv2d"


class Role(Enum):
    """The place of a provider in the comparison on a GPU."""

    OURS = "a subject, which is compared with the best of the rivals"
    PREPARED = "ours with work done before the call, in a table of its own"
    RIVAL = "one of those whose best is compared with a subject"
    BESIDE = "compared with a subject by itself, apart from the best of the rivals"


@dataclass(frozen=True, slots=True)
class Provider:
    """A contender, by its name in the CSV and on the command line.

    label: its name in tables and figures. role: None for the one on a CPU, whose algorithms are ours or rivals.
    module: its file under harness/contenders.
    colours: the colour of each of its algorithms, in order of display; empty where algorithms are listed case by case.
    colour: the colour of the algorithms that are not in `colours`. precisions: those that it can be measured in.
    epilogues: whether its calls may add a bias and a residual, and apply ReLU. optional: a sweep measures it where
    --provider names it, and not by default. particular: what a sentence on its times adds, such as "where it applies".
    """

    name: str
    label: str
    role: Role | None
    module: str
    colours: Mapping[str, str] = field(default_factory=dict)
    colour: str = ""
    precisions: tuple[str, ...] = (FP32,)
    epilogues: bool = False
    optional: bool = False
    particular: str = ""

    @property
    def device(self) -> str:
        """The kind of device that it computes on, "cuda" or "cpu"."""
        return "cuda" if self.role else "cpu"

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The names of the algorithms in order of display, empty where they are listed case by case."""
        return tuple(self.colours)

    def algorithms_in(self, precision: str) -> tuple[str, ...]:
        """The names in `algorithms` that are measured in a precision."""
        return tuple(name for name in self.colours if _computes(name, precision))

    def may_have(self, algorithm: str, precision: str) -> bool:
        """Whether a name is of one of its algorithms, or like those that it lists case by case, such as "eng3"."""
        return algorithm in self.algorithms_in(precision) if self.colours else algorithm.startswith("eng")

    def colour_of(self, algorithm: str) -> str:
        """The colour of an algorithm in every figure."""
        return self.colours.get(algorithm, self.colour)


NHWC = "_nhwc"  # the end of the name of an algorithm whose tensors are channels last
AUTO_NHWC = f"auto{NHWC}"
CHOICES = ("auto", BATCH_INVARIANT, AUTO_NHWC)  # by these the library chooses among its algorithms
# The choices first, then the algorithms: the registry of the library begins with the paper's, which everything here
# shows last.
_CUCONV = (*CHOICES, *reversed(ALGORITHMS))
_RED = "#d1495b"
_SUBJECTS = ("auto", "two_stage")

_CLASSIC = {
    "implicit_gemm": "#9ecae1", "implicit_precomp_gemm": "#3182bd", "gemm": "#08519c", "direct": "#bdbdbd",
    "fft": "#a1d99b", "fft_tiling": "#31a354", "winograd": "#fdd0a2", "winograd_nonfused": "#fd8d3c",
}  # fmt: skip
_MODES = ("default", "benchmark", "deterministic")
_TORCH = dict.fromkeys((*_MODES, *(f"{mode}{NHWC}" for mode in _MODES)), "#17a2b8")
_CPU = {"two_stage": _RED, "onednn": "#3182bd", "native": "#08519c", "fft": "#a1d99b"}

_ALL = (
    Provider("cuconv", "cuConv", Role.OURS, "cuconv_gpu", dict.fromkeys(_CUCONV, _RED), _RED, MEASURED, True),
    Provider("cuconv_prepared", "cuConv prepared", Role.PREPARED, "cuconv_prepared", {"auto": "#8c2d3a"}, "",
             MEASURED),
    Provider("cudnn", "cuDNN", Role.RIVAL, "cudnn_classic", _CLASSIC, "", PRECISIONS),
    Provider("cudnn_engine", "cuDNN engine", Role.RIVAL, "cudnn_engines", {}, "#756bb1", MEASURED, True),
    Provider("torch", "torch cuDNN", Role.RIVAL, "torch_cudnn", _TORCH, "", MEASURED, True),
    Provider("cublas", "cuBLAS", Role.BESIDE, "cublas", {"bmm": "#636363"}, "", PRECISIONS,
             particular="where it applies"),
    Provider("cutlass", "CUTLASS", Role.BESIDE, "cutlass", {"fast_fp32": "#6a994e"}, optional=True,
             particular="whose operands are NHWC before the call"),
    Provider("cpu", "CPU", None, "cpu", _CPU),
)  # fmt: skip
OWN = Path(os.environ[OWN_VARIABLE]) if os.environ.get(OWN_VARIABLE) else None
"""The file of a contender of one's own (harness/contenders/own.py); None where a command names none."""
_OWN = () if OWN is None else (
    Provider(OWN.stem, OWN.stem, Role.BESIDE, "own", {OWN_ALGORITHM: "#c77800"}, particular="a kernel of one's own"),
)  # fmt: skip
PROVIDERS = {provider.name: provider for provider in (*_OWN, *_ALL)}
CLASSIC_ALGORITHMS = PROVIDERS["cudnn"].algorithms
BESIDE = tuple(name for name, provider in PROVIDERS.items() if provider.role is Role.BESIDE)
OPTIONAL = tuple(name for name, provider in PROVIDERS.items() if provider.optional)


def is_own(provider: str) -> bool:
    """Whether a contender is that of `--contender`."""
    return OWN is not None and provider == OWN.stem


def how_to_measure(provider: str) -> str:
    """The command that measures a contender of this project, or one of one's own."""
    known = provider in (one.name for one in _ALL)
    return f"python -m harness.run {f'--provider {provider}' if known else f'--contender {provider}.py'}"


def own_contender(text: str) -> Path:
    """The value of --contender: a Python file that is there, and whose name is none of a contender of this project."""
    path = Path(text)
    if path.suffix != ".py" or not path.is_file():
        raise ArgumentTypeError(f"{text!r} must be a Python file that exists, such as my_kernel.py")
    if path.stem in (provider.name for provider in _ALL):
        raise ArgumentTypeError(f"{text!r} has the name of a contender of this project: rename the file")
    return path


def _computes(algorithm: str, precision: str) -> bool:
    """Whether an algorithm is measured in a precision."""
    if algorithm in ALGORITHMS:
        return precision in ALGORITHMS[algorithm].precisions
    return precision != FP32 or algorithm != AUTO_NHWC


def names_of(providers: Sequence[str], precision: str) -> str:
    """The algorithms of contenders in a precision, for a message: each once, and examples where cuDNN lists them."""
    names = (name for one in providers for name in PROVIDERS[one].algorithms_in(precision) or ("eng0", "eng1", "..."))
    return f"the algorithms of {', '.join(providers)} are {', '.join(dict.fromkeys(names))}"


def shown(provider: str, algorithm: str) -> str:
    """The name of an algorithm with its provider's label, such as "cuDNN winograd"."""
    return f"{PROVIDERS[provider].label} {algorithm}"


def _families() -> dict[str, str]:
    """Each colour's family: the name of the provider that has one colour, or else of the algorithm."""
    families: dict[str, str] = {}
    for provider in PROVIDERS.values():
        colours = provider.colours or {provider.name: provider.colour}
        for algorithm, colour in colours.items():
            families.setdefault(colour, provider.name if len(set(colours.values())) == 1 else algorithm)
    return families


_FAMILIES = _families()
COLOURS = {name: colour for colour, name in _FAMILIES.items()}
"""The colour of each family of algorithms, in order of display. A family is what shares a colour."""


def family(provider: str, algorithm: str) -> str:
    """The key of COLOURS that an algorithm belongs to."""
    return _FAMILIES.get(PROVIDERS[provider].colour_of(algorithm), algorithm)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against theirs: `subjects` are algorithms of `provider`, and must beat the best of `rivals`, a label."""

    provider: str
    subjects: tuple[str, ...]
    rivals: str

    @property
    def rivals_label(self) -> str:
        """The name of what the subjects must beat."""
        return f"the best {self.rivals}"

    def is_rival(self, provider: str, algorithm: str) -> bool:
        """Whether the subjects are compared with an algorithm; never with themselves."""
        if provider == self.provider and algorithm in self.subjects:
            return False
        if self.provider == "cpu":
            return provider == "cpu" and algorithm != "two_stage"
        return PROVIDERS[provider].role is Role.RIVAL


def comparison(device: str, subject: tuple[str, str] | None = None) -> Comparison:
    """The comparison that tables and figures make of a device's results; device: "cpu" or a GPU's name.

    subject: the (provider, algorithm) to compare with the rivals. By default the subjects on a GPU are the library's
    own choice and the paper's algorithm. The table of algorithms has the rest.
    """
    if device == "cpu":
        return Comparison("cpu", (subject[1] if subject else "two_stage",), "torch CPU convolution")
    return Comparison(subject[0], (subject[1],), "cuDNN") if subject else Comparison("cuconv", _SUBJECTS, "cuDNN")
