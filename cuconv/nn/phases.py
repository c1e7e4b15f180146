"""A transposed convolution as ordinary ones of stride 1: its filters by phases of the output, and their interleave.

On an axis with the stride s, output o reads input i through tap k where o + padding = i * s + k * dilation. A phase is
the outputs whose o + padding has the same remainder modulo s. Its taps are every s-th one, and its stride is 1. The
filters of phases with equally many taps are stacked: they are the filters of one convolution. No stacked filter has a
zero in the place of a missing tap, so NaN and infinity reach the outputs that read them, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuconv.core.geometry import Pairs, zeros
from cuconv.core.problem import UnsupportedProblem
from cuconv.nn.formats import HALVES, empty, laid_out


class Filters(NamedTuple):
    """Phases `first`, `first + 1`, ... of an axis with equally many taps."""

    first: int
    phases: int
    taps: int


class Piece(NamedTuple):
    """Phases of one of an axis' `filters` whose outputs lie next to each other.

    first: among the phases of these filters. position: the last input that output 0 of the phases may read.
    """

    filters: int
    first: int
    phases: int
    position: int


class Axis(NamedTuple):
    """The geometry of a transposed convolution on one axis, in numbers as torch takes them."""

    size: int
    stride: int
    padding: int
    output_padding: int
    dilation: int

    def check(self) -> None:
        """Raise UnsupportedProblem for an axis that torch computes, or refuses."""
        if self.stride > 1 and self.dilation > 1:
            raise UnsupportedProblem(f"its stride is {self.stride} and its dilation {self.dilation}: one must be 1")
        if self.stride > self.size:
            raise UnsupportedProblem(f"its stride {self.stride} is larger than its filters, {self.size}")
        if not 0 <= self.padding <= self._reach:
            raise UnsupportedProblem(f"its padding {self.padding} is not from 0 to {self._reach}")
        if not 0 <= self.output_padding < max(self.stride, self.dilation):
            raise UnsupportedProblem(f"its output_padding {self.output_padding} is not below its stride or dilation")

    @property
    def _reach(self) -> int:
        return self.dilation * (self.size - 1)

    def outputs(self, inputs: Any) -> Any:
        """The size of the output for that of the input."""
        return (inputs - 1) * self.stride - 2 * self.padding + self._reach + self.output_padding + 1

    @property
    def growth(self) -> int:
        """The outputs of a phase, counted up to the last output of any phase, less the inputs."""
        return -(-self.outputs(0) // self.stride)

    @property
    def filters(self) -> list[Filters]:
        """All phases, those with the most taps first."""
        taps, rest = divmod(self.size, self.stride)
        longer = [Filters(0, rest, taps + 1)] if rest else []
        return [*longer, Filters(rest, self.stride - rest, taps)]

    @property
    def pieces(self) -> list[Piece]:
        """All phases in the order of their outputs."""
        whole, first = divmod(self.padding, self.stride)
        found = []
        for low, high, position in ((first, self.stride, whole), (0, first, whole + 1)):
            for place, (start, count, _) in enumerate(self.filters):
                begin, end = max(low, start), min(high, start + count)
                if begin < end:
                    found.append(Piece(place, begin - start, end - begin, position))
        return found

    def pads(self, filters: int) -> tuple[int, int]:
        """The zeros before and behind the input of a convolution by one of the `filters`."""
        positions = [piece.position for piece in self.pieces if piece.filters == filters]
        return max(0, self._before(filters) - min(positions)), max(0, max(positions) + self.growth)

    def _before(self, filters: int) -> int:
        """The distance from the first to the last input that one of the `filters` reads."""
        return self.dilation * (self.filters[filters].taps - 1)

    def start(self, piece: Piece) -> int:
        """The place of a piece's output 0 in the output of its convolution."""
        return piece.position + self.pads(piece.filters)[0] - self._before(piece.filters)

    def inputs(self, outputs: Any) -> Any:
        """The size of the input, from that of the output of the convolution by the first of `filters`."""
        return outputs - sum(self.pads(0)) + self._before(0)

    def taps(self, weight: Tensor, dim: int, filters: Filters) -> Tensor:
        """The taps of phases on a dimension of a weight, and the phases as a new last dimension."""
        reach = (filters.taps - 1) * self.stride + filters.phases
        return weight.narrow(dim, filters.first, reach).unfold(dim, filters.phases, self.stride)


Convolve = Callable[..., Tensor]
"""A convolution of (input, weight, bias, stride, padding, dilation, groups)."""


class Transposed(NamedTuple):
    """A transposed convolution of images (N, C, H, W) by weights (C, M / groups, KH, KW)."""

    rows: Axis
    columns: Axis
    groups: int

    @property
    def geometry(self) -> list[Any]:
        """Filter size, stride, padding, output_padding and dilation on both axes, and groups."""
        return [*map(list, zip(self.rows, self.columns, strict=True)), self.groups]

    @property
    def _filters(self) -> list[tuple[tuple[int, Filters], tuple[int, Filters]]]:
        """The filters on both axes, and their places, of each ordinary convolution."""
        return list(product(enumerate(self.rows.filters), enumerate(self.columns.filters)))

    @property
    def dilation(self) -> tuple[int, int]:
        """The dilation of the ordinary convolutions."""
        return self.rows.dilation, self.columns.dilation

    @property
    def paddings(self) -> list[tuple[int, int] | Pairs]:
        """The padding of each ordinary convolution, as `cuconv.conv2d` takes it."""
        places = ((row, column) for (row, _), (column, _) in self._filters)
        return [zeros("padding", (self.rows.pads(row), self.columns.pads(column))) for row, column in places]

    def weights(self, weight: Tensor) -> list[Tensor]:
        """The weights of each ordinary convolution: its output channels are (groups, phases, phases, M / groups)."""
        weight = weight.unflatten(0, (self.groups, weight.shape[0] // self.groups))
        found = []
        for (_, above), (_, beside) in self._filters:
            taps = self.columns.taps(self.rows.taps(weight, 3, above), 4, beside)
            filters = taps.flip(3, 4).permute(0, 5, 6, 2, 1, 3, 4).flatten(0, 3)
            found.append(laid_out(filters))
        return found

    def shapes(self, weight: Tensor) -> list[tuple[int, ...]]:
        """The shapes of `weights`."""
        channels, outputs = weight.shape[0] // self.groups, weight.shape[1] * self.groups
        return [
            (phases * outputs, channels, above.taps, beside.taps)
            for phases, ((_, above), (_, beside)) in zip(self.phases, self._filters, strict=True)
        ]

    @property
    def phases(self) -> list[int]:
        """The phases of the image that each ordinary convolution computes."""
        return [above.phases * beside.phases for (_, above), (_, beside) in self._filters]

    def computed(
        self, convolve: Convolve, input: Tensor, weight: Tensor, bias: Tensor | None, interleave: Convolve | None = None
    ) -> Tensor:
        """The transposed convolution by a function that computes ordinary ones, and one in the place of interleaved."""
        outputs = [
            convolve(input, filters, repeated(bias, self.groups, phases), (1, 1), pads, self.dilation, self.groups)
            for filters, phases, pads in zip(self.weights(weight), self.phases, self.paddings, strict=True)
        ]
        if all(axis.stride == 1 and axis.output_padding == 0 for axis in (self.rows, self.columns)):
            return outputs[0]
        return (interleave or interleaved)(outputs, *self.geometry)

    def output_shape(self, outputs: Sequence[Tensor]) -> list[Any]:
        """The shape of the output, from the outputs of the ordinary convolutions."""
        images, channels, height, width = outputs[0].shape
        sizes = [axis.outputs(axis.inputs(size)) for axis, size in ((self.rows, height), (self.columns, width))]
        return [images, channels // self.phases[0], *sizes]


def repeated(values: Tensor | None, groups: int, phases: int) -> Tensor | None:
    """Values of the channels (M,) for the output channels (groups, phases, M / groups) of a stacked weight."""
    if values is None or phases == 1:
        return values
    return values.reshape(groups, 1, values.shape[0] // groups).expand(-1, phases, -1).flatten()


def interleaved(
    outputs: Sequence[Tensor],
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The output (N, M, OH, OW) of a transposed convolution, from those of the ordinary ones that compute its phases.

    It is in the memory format of its type, and a copy except where the memory of the phases is that of the output.
    """
    layer = transposed_by((size, stride, padding, output_padding, dilation), groups)
    images, channels, *sizes = layer.output_shape(outputs)
    counts = [-(-size // axis.stride) for size, axis in zip(sizes, layer[:2], strict=True)]
    views = [
        output.unflatten(1, (groups, above.phases, beside.phases, channels // groups))
        for output, ((_, above), (_, beside)) in zip(outputs, layer._filters, strict=True)
    ]
    is_last = outputs[0].dtype in HALVES  # whether the channels of a pixel lie together in memory
    order, places = ((0, 5, 2, 6, 3, 1, 4), (2, 4)) if is_last else ((0, 1, 4, 5, 2, 6, 3), (4, 6))

    def phases(top: Piece, left: Piece) -> Tensor:
        view = views[top.filters * len(layer.columns.filters) + left.filters]
        for dim, piece in ((2, top), (3, left)):
            view = view.narrow(dim, piece.first, piece.phases)
        starts = layer.rows.start(top), layer.columns.start(left)
        for dim, start, count in zip((5, 6), starts, counts, strict=True):
            view = view.narrow(dim, start, count)
        return view.permute(order)

    bands = [_joined([phases(top, left) for left in layer.columns.pieces], places[1]) for top in layer.rows.pieces]
    joined = _joined(bands, places[0])
    height, width = (count * axis.stride for count, axis in zip(counts, layer[:2], strict=True))
    if is_last:
        joined = joined.reshape(images, height, width, channels).permute(0, 3, 1, 2)
    else:
        joined = joined.reshape(images, channels, height, width)
    return laid_out(joined.narrow(2, 0, sizes[0]).narrow(3, 0, sizes[1]))


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def transposed_by(sizes: Sequence[Sequence[int]], groups: int) -> Transposed:
    """The transposed convolution of a geometry: filter size, stride, padding, output_padding, dilation on two axes.

    Raises UnsupportedProblem for one that torch computes, or refuses.
    """
    rows, columns = (Axis(*axis) for axis in zip(*sizes, strict=True))
    rows.check()
    columns.check()
    return Transposed(rows, columns, groups)


def _own(outputs: Sequence[Tensor], *geometry: Any) -> Tensor:
    """`interleaved` in memory of its own, as an operator's result must be."""
    output = interleaved(outputs, *geometry)
    shares = output.untyped_storage()._cdata == outputs[0].untyped_storage()._cdata
    return output.clone() if shares else output


def _fake(outputs: Sequence[Tensor], *geometry: Any) -> Tensor:
    *sizes, groups = geometry
    return empty(transposed_by(sizes, groups).output_shape(outputs), outputs[0])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what the gradients need."""
    outputs, *ctx.geometry = inputs
    ctx.shapes = [one.shape for one in outputs]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """The gradients of the outputs of the ordinary convolutions; an interleave is linear."""
    anywhere = [gradient.new_zeros(shape) for shape in ctx.shapes]
    gradients = torch.func.vjp(lambda *outputs: interleaved(outputs, *ctx.geometry), *anywhere)[1](gradient)
    return list(gradients), *[None] * len(ctx.geometry)


_library = torch.library.Library("cuconv", "FRAGMENT")
_library.define(
    "interleave(Tensor[] outputs, int[] size, int[] stride, int[] padding, int[] output_padding, int[] dilation, "
    "int groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("interleave", _own, "CompositeExplicitAutograd")
torch.library.register_fake("cuconv::interleave", _fake, lib=_library)
torch.library.register_autograd("cuconv::interleave", _backward, setup_context=_setup, lib=_library)
INTERLEAVE = torch.ops.cuconv.interleave.default
