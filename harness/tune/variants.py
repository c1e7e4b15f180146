"""python -m harness.tune.variants: choose the kernel variants that "auto" may take, by the cost models.

Some algorithms have too many variants to compile them all. For each of these a file next to its CUDA
source lists some, a row of macros for each. The list begins empty and takes whichever variant lowers the predicted
times of the layers most for its size, until what it loses is small, or a wheel is full. The layers are those of the
sweeps, and random ones. Variants that spill registers or serialize wgmma are left out. The command prints what each
length of the list loses, and writes the files. It needs no GPU, but compiles the variants that it lists.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

import numpy as np

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import Algorithm, CallOptions, Macros
from cuconv.algorithms.common.listed import FILE_SUFFIX, PREPARED, ListedVariants, listed, variant_key
from cuconv.core.launch import KernelVariant
from cuconv.core.problem import FP16, FP32, TF32, ConvProblem, UnsupportedProblem
from cuconv.device import H200
from cuconv.runtime import compiler
from cuconv.select import MAX_WORKSPACE_BYTES
from harness import command, progress
from harness.cases.catalogue import CONFIGS, load_sweep
from harness.cases.random_layers import Distribution, problems
from harness.cases.yaml_file import read_yaml
from harness.store.files import write_whole
from harness.store.markdown import markdown

PAPER, SWEEP, DRAWN, LARGE, OTHERS = "paper", "sweep", "drawn", "large", "others"  # kinds of groups
SWEEPS = (
    *(PAPER, "strided", "grouped", "fully_connected", "unseen"),
    *("vae", "super_resolution", "audio", "boards", "blur", "public"),
)
BLOCKS = ("vae", "super_resolution", "audio")  # sweeps of residual blocks, whose layers keep the number of channels
RANDOM_PROBLEMS = 1200  # drawn for each precision, as networks have layers
# Layers from the distribution of configs/random.yaml; its own seed and a test's differ.
DRAWN_SEEDS = (101, 102, 103, 104)
DRAWN_PROBLEMS = 400  # for each seed
LARGE_PROBLEMS = 200
# What a list may lose in the geometric mean of a group's layers, as a share, and how much the group weighs: by the
# precision and the kind of group. Random layers and those with a residual have little in common.
LIMITS = {
    FP32: {PAPER: 0.003, SWEEP: 0.006, DRAWN: 0.015, LARGE: 0.01, OTHERS: 0.06},
    TF32: {PAPER: 0.03, SWEEP: 0.03, DRAWN: 0.04, LARGE: 0.03, OTHERS: 0.09},
    FP16: {PAPER: 0.005, SWEEP: 0.01, DRAWN: 0.0115, LARGE: 0.006, OTHERS: 0.02},
}
WEIGHTS = {
    FP32: {PAPER: 16.0, SWEEP: 4.0, DRAWN: 6.0, LARGE: 2.0, OTHERS: 1.0},
    TF32: {PAPER: 1.0, SWEEP: 1.0, DRAWN: 2.0, LARGE: 0.5, OTHERS: 0.5},
    FP16: {PAPER: 4.0, SWEEP: 2.0, DRAWN: 2.0, LARGE: 1.0, OTHERS: 1.0},
}
FAR = 3.0  # the logarithm of the loss of a problem that no variant of the list computes
# What a variant takes in a wheel, in all its forms, in KiB: means. A wheel has 40 MiB, of which others take 4.
KIB = {"fp16x3": 73, "fp16x3_winograd": 68, "nhwc_wgmma": 46, "fp16x3_pointwise": 30, "nhwc_split": 22}
LEAST_KIB = 10  # what a variant of any other algorithm takes
MOST_KIB = 35 * 1024
SQUARE = 12.0  # how much the square of a loss counts: large losses are more than a share of the mean
STEP = 25  # variants between two lines of the table

Variant = tuple[str, frozenset[tuple[str, int]]]
"""An algorithm and the macros of its main kernel, without that of prepared weights."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call whose predicted time counts. group: a sweep, or random layers, or layers with a residual."""

    group: str
    problem: ConvProblem
    options: CallOptions


def asked(seed: int, precisions: Sequence[str]) -> Iterator[Asked]:
    """The calls by which variants are chosen, with prepared weights and without, in the precisions, some unaligned."""
    chance = random.Random(seed)
    groups = {sweep: [case.problem for case in load_sweep(sweep).cases] for sweep in SWEEPS}
    groups["random"] = [random_problem(chance) for _ in range(RANDOM_PROBLEMS)]
    residual = (one for one in groups[PAPER] + groups["random"] if one.is_dense and one.kh in (1, 3))
    groups["residual"] = [one for one in residual if chance.random() < 0.25]
    groups["residual"] += [one for sweep in BLOCKS for one in groups[sweep] if one.is_dense and one.c == one.m]
    groups[DRAWN] = [one for drawn_by in DRAWN_SEEDS for one in drawn_problems(drawn_by, DRAWN_PROBLEMS)]
    groups[LARGE] = [large_problem(chance) for _ in range(LARGE_PROBLEMS)]
    for precision in precisions:
        for group, problem, packed in [(g, p, one) for g in groups for p in groups[g] for one in (False, True)]:
            aligned = group not in ("random", DRAWN) or chance.random() > 0.2
            options = CallOptions(aligned, residual=group == "residual", packed=packed)
            yield Asked(f"{group} {precision}", replace(problem, precision=precision), options)


def drawn_problems(seed: int, cases: int) -> list[ConvProblem]:
    """Layers of any geometry: those that a seed draws from the distribution of configs/random.yaml."""
    chances = read_yaml(CONFIGS / "random.yaml")["random"] | {"seed": seed, "cases": cases}
    return list(problems(Distribution.model_validate(chances)))


def large_problem(chance: random.Random) -> ConvProblem:
    """A layer on a large image, as networks that restore or generate images have it."""
    c, m = (32 * chance.choice((1, 2, 3, 4, 6, 8, 12, 16)) for _ in range(2))
    k = chance.choice((1, 3, 3, 3, 3, 4, 5))
    h = w = chance.choice((128, 192, 256, 384, 512, 768, 1024, chance.randint(64, 1024)))
    if chance.random() < 0.3:
        w = chance.randint(64, 1024)
    return ConvProblem(chance.choice((1, 1, 2, 4)), c, h, w, m, k, k, k // 2, k // 2)


def random_problem(chance: random.Random) -> ConvProblem:
    """A layer as networks have it, of any size: mostly 1x1 and 3x3, some with a stride, groups or a dilation."""
    c = chance.choice((3, 16, 24, 32, 40, 48, 64, 72, 96, 112, 128, 160, 192, 256, 320, 384, 480, 512, 768, 1024, 2048))
    m = chance.choice((16, 24, 32, 40, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048))
    kh = kw = chance.choice((1, 1, 1, 1, 3, 3, 3, 3, 5, 7))
    if chance.random() < 0.05:
        kh, kw = chance.choice(((1, 3), (3, 1), (1, 7), (7, 1), (2, 2), (4, 4), (9, 9), (11, 11)))
    stride, dilation, groups = chance.choice((1, 1, 1, 1, 2)), 1, 1
    if kh > 1 and chance.random() < 0.1:
        dilation = 2
    if c > 3 and chance.random() < 0.15:
        groups, m = chance.choice(((c, c), (c, c), (8, m // 8 * 8), (2, m))) if c % 8 == 0 else (1, m)
    pad_h, pad_w = dilation * (kh // 2), dilation * (kw // 2)
    n = chance.choice((1, 1, 1, 2, 4, 8, 16, 32, 64))
    h, w = chance.choice((7, 14, 28, 56, chance.randint(4, 160))), chance.randint(4, 160)
    return ConvProblem(
        n, c, h, w if chance.random() < 0.5 else h, m, kh, kw, pad_h, pad_w, stride_h=stride, stride_w=stride,
        dilation_h=dilation, dilation_w=dilation, groups=groups,
    )  # fmt: skip


def times_of(one: Asked) -> dict[Variant | None, float]:
    """The least predicted time of each listed algorithm's variants, and, by None, of all other algorithms."""
    found: dict[Variant | None, float] = {}
    for precision in (TF32, FP32) if one.problem.precision == TF32 else (one.problem.precision,):
        problem = replace(one.problem, precision=precision)
        for name in offering(precision):
            algorithm = ALGORITHMS[name]
            added_us = algorithm.adding_us(problem, one.options)
            with suppress(UnsupportedProblem):
                for us, config in algorithm.ranked(problem, H200, one.options, closed=False):
                    if config.workspace_bytes > MAX_WORKSPACE_BYTES:
                        continue
                    for variant, slowdown in variants_of(algorithm, problem, config, one.options):
                        found[variant] = min(slowdown * us + added_us, found.get(variant, inf))
    return found


def variants_of(
    algorithm: Algorithm[Any, Any], problem: ConvProblem, config: Any, options: CallOptions
) -> list[tuple[Variant | None, float]]:
    """The variants that a configuration's main kernel may be, and how many times as long as the first they take."""
    if not isinstance(algorithm, ListedVariants):
        return [(None, 1.0)]
    forms = algorithm.forms(problem, config, algorithm.fulfilled(problem, config, options))
    return [((algorithm.name, variant_key(macros)), slowdown) for slowdown, macros in forms]


@dataclass(slots=True)
class Losses:
    """Losses of variants on calls: each the logarithm of a predicted time over that of the fastest plan of all.

    of: for each variant the numbers of the calls that it computes, and its losses on them. without: for each call the
    loss without any listed variant. groups: for each call the number of its group's name.
    """

    of: dict[Variant, tuple[np.ndarray, np.ndarray]]
    without: np.ndarray
    groups: np.ndarray
    names: list[str]

    def means(self, losses: np.ndarray) -> np.ndarray:
        """The geometric mean of losses on the calls in each group, as a share."""
        return np.expm1(np.bincount(self.groups, losses) / np.bincount(self.groups))


def losses_of(calls: list[Asked]) -> Losses:
    """The loss of every variant on every call that it computes; calls that nothing computes are left out."""
    of: dict[Variant, list[tuple[int, float]]] = defaultdict(list)
    timed = [(one, times) for one in progress.counted(calls) if (times := times_of(one))]
    calls, without = [one for one, _ in timed], np.full(len(timed), FAR)
    for i, (_, times) in enumerate(timed):
        for variant, us in times.items():
            loss = min(FAR, np.log(us / min(times.values())))
            if variant is None:
                without[i] = loss
            else:
                of[variant].append((i, loss))
    columns = {variant: np.array(pairs).T for variant, pairs in of.items()}
    names = list(dict.fromkeys(one.group for one in calls))
    groups = np.array([names.index(one.group) for one in calls])
    return Losses({one: (i.astype(int), loss) for one, (i, loss) in columns.items()}, without, groups, names)


def _of_group(values: dict[str, dict[str, float]], group: str) -> float:
    name, precision = group.split()
    return values[precision][name if name in (PAPER, DRAWN, LARGE) else SWEEP if name in SWEEPS else OTHERS]


class _Growing:
    """A list of variants that grows: by which calls it loses how much."""

    def __init__(self, losses: Losses) -> None:
        of_group = np.array([_of_group(WEIGHTS, name) for name in losses.names]) / np.bincount(losses.groups)
        self.losses, self.weights, self.now = losses, of_group[losses.groups], losses.without.copy()
        self.variants: list[Variant] = []
        self.kib = 0
        self.lines: list[list[Any]] = []

    def gain(self, variant: Variant) -> float:
        """The decrease of the weighted sum of losses and squared losses that a variant brings."""
        calls, loss = self.losses.of[variant]
        now, lower = self.now[calls], np.minimum(self.now[calls], loss)
        return float(self.weights[calls] @ (now - lower + SQUARE * (now**2 - lower**2)))

    def worth(self, variant: Variant) -> float:
        """The gain of a variant for each KiB that it takes in a wheel."""
        return self.gain(variant) / KIB.get(variant[0], LEAST_KIB)

    def add(self, variant: Variant) -> None:
        """Add a variant, and after some of them a line to the table."""
        calls, loss = self.losses.of[variant]
        self.variants.append(variant)
        self.kib += KIB.get(variant[0], LEAST_KIB)
        self.now[calls] = np.minimum(self.now[calls], loss)
        if len(self.variants) % STEP == 0:
            self.note()

    def note(self) -> None:
        """Add a line to the table: what the list loses."""
        means, worst = self.losses.means(self.now), float(np.expm1(self.now.max()))
        self.lines.append([len(self.variants), *(f"{share:.2%}" for share in means), f"{worst:.0%}"])

    def is_done(self) -> bool:
        """Whether a wheel is full, or the list loses little enough in every group."""
        limits = [_of_group(LIMITS, name) for name in self.losses.names]
        return self.kib >= MOST_KIB or bool((self.losses.means(self.now) <= limits).all())


def chosen(losses: Losses, kept: Collection[Variant] = ()) -> list[Variant]:
    """The variants to list; prints what the list loses as it grows.

    Each step adds the variant of the most worth. Worth can only fall as the list grows, so only that on top of the
    heap is computed anew (lazy greedy). kept: variants to add before others, as far as any call gains by them.
    """
    found, first = _Growing(losses), set(kept)
    others = [variant for variant in losses.of if variant not in first]
    for pool in ([variant for variant in kept if variant in losses.of], others):
        heap = [(-found.worth(variant), number, variant) for number, variant in enumerate(pool)]
        heapify(heap)
        while heap and not (pool is others and found.is_done()):
            _, number, variant = heappop(heap)
            worth = found.worth(variant)
            if heap and worth < -heap[0][0]:
                heappush(heap, (-worth, number, variant))
            elif worth > 0:
                found.add(variant)
            else:
                break
    found.note()
    print(markdown(["variants", *losses.names, "worst"], found.lines, left=()))
    return found.variants


def all_listed(precisions: Sequence[str]) -> list[Variant]:
    """The variants that the files of the algorithms of some precisions list."""
    return [
        (algorithm.name, variant_key(macros))
        for algorithm in _with_lists(precisions)
        for macros in listed(algorithm.source)
    ]


def _with_lists(precisions: Sequence[str]) -> list[Algorithm[Any, Any]]:
    return [
        algorithm
        for algorithm in ALGORITHMS.values()
        if isinstance(algorithm, ListedVariants) and set(precisions) & set(algorithm.precisions)
    ]


def slowed(variants: list[Variant]) -> list[Variant]:
    """The variants whose kernels spill registers or serialize wgmma; compiles them on all cores."""

    def is_slowed(variant: Variant) -> bool:
        name, macros = variant
        algorithm: Any = ALGORITHMS[name]
        forms = algorithm.of_row(dict(macros))
        if type(algorithm).packing is not Algorithm.packing:  # its weights can be prepared
            forms += [form | {PREPARED: 1} for form in forms]
        compiled = (KernelVariant.of(algorithm.source, H200.arch, form) for form in forms)
        kernels = (one for variant in compiled for one in compiler.resources(variant))
        return any(kernel.spill_bytes or kernel.serialized for kernel in kernels)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC runs outside of Python's lock
        found = list(progress.counted(pool.map(is_slowed, variants), "compiling", len(variants)))
    return [variant for variant, slow in zip(variants, found, strict=True) if slow]


def text_of(variants: list[Macros]) -> str:
    """The file that lists variants, in an order that does not depend on theirs."""
    columns = sorted(set().union(*variants))
    cells = sorted([str(macros.get(column, "")) for column in columns] for macros in variants)
    return "\n".join([",".join(columns), *map(",".join, cells)]) + "\n"


def write(variants: list[Variant], precisions: Sequence[str]) -> None:
    """Write the lists of the algorithms of some precisions; raises RuntimeError where an algorithm would have none."""
    rows = {
        algorithm.name: [dict(macros) for owner, macros in variants if owner == algorithm.name]
        for algorithm in _with_lists(precisions)
    }
    without = [name for name, of_algorithm in rows.items() if not of_algorithm]
    if without:
        raise RuntimeError(f"no variant was chosen of {', '.join(without)}: is it of no use any more?")
    for name, of_algorithm in rows.items():
        write_whole(ALGORITHMS[name].source.with_suffix(FILE_SUFFIX), text_of(of_algorithm))
        print(f"{name}: {len(of_algorithm)} variants")


def _run(options: argparse.Namespace) -> None:
    precisions = options.precision or list(LIMITS)
    losses = losses_of(list(asked(options.seed, precisions)))
    kept = all_listed(precisions) if options.keep else []
    found = chosen(losses, kept)
    while worse := slowed(sorted(set(found) - set(kept), key=found.index)):
        print(f"{len(worse)} of these variants spill registers or serialize wgmma: chosen again, without them")
        for variant in worse:
            del losses.of[variant]
        found = chosen(losses, kept)
    write(found, precisions)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", nargs="+", choices=list(LIMITS), help="of the lists to write (default: all)")
    parser.add_argument("--keep", action="store_true", help="add to the lists, and drop only what no layer gains by")
    parser.add_argument("--seed", type=int, default=0, help="of the random layers (default: 0)")


main = command.program(
    "harness.tune.variants",
    'Choose the kernel variants that "auto" may take, by the cost models, and list them.',
    _run,
    _add_options,
)

if __name__ == "__main__":
    sys.exit(main())
