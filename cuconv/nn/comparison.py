"""Whether a converted model returns what the model returns, on an example and on inputs made of it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cuconv.core.problem import FP32, TF32
from cuconv.nn.dispatch import by_torch_in_fp32, convolutions_by
from cuconv.reference import round_to_tf32

aten = torch.ops.aten

TOLERANCE = {FP32: 1e-5, TF32: 1e-2}  # the largest relative L2 error of an output, unless torch's own is larger
TIMES_TORCHS = 3  # the largest ratio of our error to torch's in the same precision
LARGEST_ERROR = 0.1  # the largest error in any case: results that differ more have little in common
SEED = 20_26
GRADIENTS, INFERENCE = "gradients enabled", "inference mode"  # modes of torch, besides torch.no_grad()
WIDER = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    torch.complex64: torch.complex128,
}
MULTIPLIED: dict[Any, tuple[int, ...]] = {  # the places of both factors in the operations that torch's TF32 is about
    **dict.fromkeys((aten.convolution, aten._convolution, aten.conv1d, aten.conv2d, aten.conv3d, aten.linear), (0, 1)),
    **dict.fromkeys((aten.mm, aten.bmm, aten.matmul), (0, 1)),
    **dict.fromkeys((aten.addmm, aten.baddbmm), (1, 2)),
}

Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a model


class Inputs:
    """Arguments of a model: `arguments` and `keywords`. Each call of `new` copies their tensors, each of them once."""

    def __init__(self, example: Any):
        """example: a tensor, a tuple of arguments, or a dictionary of them by name."""
        if isinstance(example, dict):
            self.arguments, self.keywords = (), example
        else:
            self.arguments, self.keywords = example if isinstance(example, tuple) else (example,), {}

    def new(self, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Call:
        """The arguments with copies of their tensors, each after a change."""
        copies: dict[int, Tensor] = {}

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return copy.deepcopy(leaf)
            if id(leaf) not in copies:
                copies[id(leaf)] = change(leaf.detach()).clone()
            return copies[id(leaf)]

        return pytree.tree_map(copied, (self.arguments, self.keywords))

    def other_batch(self, of_another_size: bool = False) -> Inputs:
        """The first of several images, or a single one twice. Lists of images (C, H, W) keep their length.

        of_another_size: whether images are larger, too, by rows and columns of zeros.
        """
        changed: dict[int, Any] = {}

        def other(leaf: Any) -> Any:
            if id(leaf) not in changed:
                changed[id(leaf)] = _enlarged(_other_batch(leaf)) if of_another_size else _other_batch(leaf)
            return changed[id(leaf)]

        found = copy.copy(self)
        pair = self.arguments, self.keywords
        found.arguments, found.keywords = pytree.tree_map(other, pair, is_leaf=is_list_of_images)
        return found

    @property
    def has_list_of_images(self) -> bool:
        """Whether an argument is a list of images (C, H, W), as detectors take them."""
        leaves = pytree.tree_leaves((self.arguments, self.keywords), is_leaf=is_list_of_images)
        return any(map(is_list_of_images, leaves))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        leaves = pytree.tree_leaves((self.arguments, self.keywords))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def another(tensor: Tensor) -> Tensor:
    """Other data of the same kind: mirrored, and of another magnitude where they are no whole numbers."""
    mirrored = tensor.flip(tuple(range(tensor.dim()))[1:])
    return mirrored * 0.75 if tensor.is_floating_point() or tensor.is_complex() else mirrored


def is_list_of_images(value: Any) -> bool:
    """Whether an argument is a list of images (C, H, W)."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, Tensor) and one.dim() == 3 for one in value)


def _other_batch(images: Any) -> Any:
    """The first of several images, or a single one twice; anything else as it is."""
    if not isinstance(images, Tensor) or images.dim() < 2:
        return images
    return torch.cat([images, images]) if len(images) == 1 else images[:1]


def _enlarged(images: Any) -> Any:
    """Larger images. In a list they are three times as wide, since detectors scale one side to a size of their own."""
    if is_list_of_images(images):
        return [F.pad(image, (0, 2 * image.shape[-1])) for image in images]
    return F.pad(images, (0, 32, 0, 64)) if isinstance(images, Tensor) and images.dim() == 4 else images


def nudged(tensor: Tensor) -> Tensor:
    """A tensor whose numbers of floating point are larger by one part in a million."""
    return tensor * (1 + 2**-20) if tensor.is_floating_point() or tensor.is_complex() else tensor


@dataclass(slots=True)
class Truth:
    """A copy of a model that nothing else uses, which says what outputs should be."""

    model: nn.Module

    def judges(self, inputs: Callable[[], Call], precision: str) -> tuple[Any, Any]:
        """`call` of the model in float64 and, by torch, in a precision; None for one that the model refuses.

        inputs: makes the arguments of a call that the model takes. Passes errors for lack of memory on:
        without these results, a right one could be taken for wrong.
        """

        def model() -> nn.Module:
            return copy.deepcopy(self.model).double()._apply(_wider)  # `double` leaves complex numbers as they are

        precise = _unless_refused(model, pytree.tree_map_only(Tensor, _wider, inputs()))
        with RoundedToTF32() if precision == TF32 else nullcontext():
            return precise, _unless_refused(lambda: copy.deepcopy(self.model), inputs())


def _wider(tensor: Tensor) -> Tensor:
    return tensor.to(WIDER.get(tensor.dtype, tensor.dtype))


def _unless_refused(model: Callable[[], nn.Module], inputs: Call) -> Any:
    try:
        return call(model(), inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the model's own code, which may ask for float32
        return None


class RoundedToTF32(TorchDispatchMode):
    """Rounds the factors of convolutions and matrix products to TF32, on any device.

    torch itself is no judge of what TF32 costs: where TF32 is allowed, cuDNN may still compute in FP32, and does so
    where memory is short or NVIDIA_TF32_OVERRIDE is 0.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation on rounded factors."""
        places = MULTIPLIED.get(getattr(func, "overloadpacket", None), ())
        return func(*(_rounded(arg) if i in places else arg for i, arg in enumerate(args)), **(kwargs or {}))


def _rounded(factor: Any) -> Any:
    is_float = isinstance(factor, Tensor) and factor.dtype == torch.float32
    return round_to_tf32(factor) if is_float else factor


def call(function: Callable[..., Any], inputs: Call, mode: str = "") -> Any:
    """The result of a call, the tensors of its arguments as they are afterwards, and random numbers drawn afterwards.

    One number is drawn on the CPU, and one on each device of an argument. All tensors are detached. The call's random
    numbers are those of one seed, and torch's convolutions are in FP32 alone. mode: GRADIENTS, INFERENCE, or "" for
    torch.no_grad().
    """
    arguments, keywords = inputs
    inference, gradients = mode == INFERENCE, mode == GRADIENTS
    with (
        seeded(),
        convolutions_by(by_torch_in_fp32),
        torch.inference_mode(inference),
        torch.set_grad_enabled(gradients),
    ):
        tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        result = function(*arguments, **keywords)
        devices = dict.fromkeys([torch.device("cpu"), *(tensor.device for tensor in tensors)])
        numbers = [torch.randint(2**31, (), device=device) for device in devices]
        return pytree.tree_map_only(Tensor, Tensor.detach, (result, tensors, numbers))


@contextmanager
def seeded() -> Iterator[None]:
    """Random numbers of one seed, by torch, Python and NumPy; the caller's go on afterwards as if nothing had been."""
    state, state_of_numpy, gpus = random.getstate(), numpy.random.get_state(), range(torch.cuda.device_count())
    with torch.random.fork_rng(gpus):  # named, since torch warns of several that are not
        torch.manual_seed(SEED)
        random.seed(SEED)
        numpy.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(state)
            numpy.random.set_state(state_of_numpy)


def difference(
    ours: Any, theirs: Any, precision: str, judges: Callable[[], tuple[Any, Any]] = lambda: (None, None)
) -> str:
    """How ours, a result of a model in a precision, differs from torch's in FP32, in words; "" where they agree.

    judges: the results in float64 and, by torch, in the precision. Numbers of floating point agree where their relative
    L2 distance, or that of ours from float64, is at most TOLERANCE. They also agree where that of ours from float64 is
    at most LARGEST_ERROR and at most TIMES_TORCHS that of torch in the precision. They are the elements of a tensor,
    the items of a list of Python numbers, or one Python number. Whole numbers of a tensor agree where at most one in a
    hundred differs.
    """
    our_leaves, our_spec = _flattened(ours)
    their_leaves, their_spec = _flattened(theirs)
    if our_spec != their_spec:
        return f"it returns {our_spec} instead of {their_spec}"
    judging = cache(lambda: [_flattened(result)[0] for result in judges()])  # computed where it is needed, once

    def judges_of(place: int) -> list[Tensor | None]:
        return [_inexact(leaves[place]) if place < len(leaves) else None for leaves in judging()]

    for place, (our, their) in enumerate(zip(our_leaves, their_leaves, strict=True)):
        try:
            words = _differs(our, their, TOLERANCE[precision], partial(judges_of, place))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # such as of torch for quantized tensors
            words = f"an output cannot be compared: {first_line(error)}"
        if words:
            return words
    return ""


def _flattened(result: Any) -> tuple[list[Any], Any]:
    """The leaves of a result, where a list of numbers of floating point is one leaf, and its structure."""
    return pytree.tree_flatten(pytree.tree_map(_opened, result), is_leaf=_is_vector)


def _opened(leaf: Any) -> Any:
    """The fields of a dataclass as a dictionary, and an array of NumPy as a tensor."""
    if is_dataclass(leaf) and not isinstance(leaf, type):
        values = {one.name: getattr(leaf, one.name) for one in fields(leaf)}
        return {"": type(leaf).__qualname__, **pytree.tree_map(_opened, values)}
    if isinstance(leaf, numpy.ndarray) and leaf.dtype.kind in "fciub":
        return torch.from_numpy(leaf.copy())
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _is_vector(value: Any) -> bool:
    return type(value) in (list, tuple) and bool(value) and all(isinstance(one, (float, complex)) for one in value)


def _inexact(leaf: Any) -> Tensor | None:
    """The numbers of a leaf that rounding may change, as a dense tensor of real ones; None for other leaves."""
    if isinstance(leaf, (float, complex)) or _is_vector(leaf):
        leaf = torch.tensor(leaf, dtype=torch.complex128)
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return None
    dense = leaf.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _differs(our: Any, their: Any, tolerance: float, judges: Callable[[], list[Tensor | None]]) -> str:
    """How a leaf differs from torch's, in words."""
    if type(our) is not type(their):
        return f"it returns a {type(our).__name__} instead of a {type(their).__name__}"
    if isinstance(their, Tensor):
        for what in ("shape", "dtype", "device", "layout"):
            if getattr(our, what) != getattr(their, what):
                return f"an output has {what} {getattr(our, what)} instead of {getattr(their, what)}"
    ours, theirs = _inexact(our), _inexact(their)
    if ours is None or theirs is None:
        return _differs_exactly(our, their)
    if ours.shape != theirs.shape:
        return f"it returns {len(our)} numbers instead of {len(their)}"
    error = distance(ours, theirs)
    return "" if error <= tolerance or _as_good(ours, judges(), tolerance) else f"relative L2 error {error:.2g}"


def _differs_exactly(our: Any, their: Any) -> str:
    if not isinstance(their, Tensor):
        return _differs_as_objects(our, their)
    wrong = int((our.to_dense() != their.to_dense()).sum())
    return f"{wrong} of {their.numel()} numbers differ" if wrong > their.numel() / 100 else ""


def _differs_as_objects(our: Any, their: Any) -> str:
    try:
        is_equal = bool(our == their) or our is their or (our != our and their != their)
    except Exception:  # objects define what == means
        return f"it returns a {type(their).__name__}, which cannot be compared"
    return "" if is_equal else f"it returns {our!r:.100} instead of {their!r:.100}"


def distance(our: Tensor, their: Tensor) -> float:
    """The relative L2 distance of two tensors.

    It is infinite where an element is finite in one tensor alone, or where all of theirs are 0 and not all of ours.
    """
    ours, theirs = our.double(), their.double()
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return float("inf")
    ours, theirs = ours.nan_to_num(0, 0, 0), theirs.nan_to_num(0, 0, 0)
    largest = theirs.abs().max().item() if theirs.numel() else 0.0
    if largest == 0.0:
        return 0.0 if not bool(ours.any()) else float("inf")
    return float(torch.linalg.vector_norm((ours - theirs) / largest) / torch.linalg.vector_norm(theirs / largest))


def _as_good(our: Tensor, judges: list[Tensor | None], least: float) -> bool:
    """Whether a result is close to the one in float64, or not much farther from it than torch's in the precision."""
    truth, torchs = judges
    if truth is None or torchs is None or not truth.shape == torchs.shape == our.shape:
        return False
    return distance(our, truth) <= max(least, min(LARGEST_ERROR, TIMES_TORCHS * distance(torchs, truth)))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 200 characters; its type where the message is empty."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return first.removesuffix(", but expected one of:")[:200]  # torch lists the signatures in the next lines
