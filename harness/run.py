"""python -m harness.run, or harness run: measure a sweep, or a slice of one, and print which side was faster."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from functools import partial
from pathlib import Path

import torch

from harness import command, precision, variables
from harness.cases.catalogue import CONFIGS, LABELS, Sweep, known_networks, known_sweeps, load_sweep
from harness.contenders import own
from harness.contenders.registry import PROVIDERS, is_own, names_of, own_contender
from harness.errors import ResultsError, UsageError
from harness.precision import FP32, MEASURED, TF32
from harness.report.half import in_channels_last
from harness.report.speedups import summary_table, with_tf32
from harness.store import environment
from harness.store.files import stored
from harness.store.times import MOST_RUNS
from harness.sweep import hosts, second_pass, session
from harness.sweep.comparisons import Results
from harness.sweep.hosts import Group
from harness.sweep.one_case import Options
from harness.sweep.provenance import OF_A_CPU
from harness.sweep.records import CASE_COLUMNS, STATUSES, read
from harness.sweep.rivals import Entrants, fastest_rivals


def _run(options: argparse.Namespace) -> None:
    precision.set_for_process(options.precision)
    options.group = hosts.group()
    first = options.group is None or options.group.rank == 0
    device = _device(options.device, options.group)
    only_shown = options.list or options.dry_run
    kind = "cuda" if only_shown and options.device is None else device.type  # what a GPU measures is shown without one
    if options.contender:
        _check_own(options, kind)
    if first and kind == "cpu" and (note := _note_on_a_cpu(options)):
        print(note)
    chosen = _sweep(options, kind)
    providers = _with_epilogue(chosen, _providers(options, kind), bool(options.provider))
    algorithms = _algorithms(options, providers)
    if options.list:
        _print_list(chosen, kind, options.precision)
    elif options.dry_run:
        _print_cases(chosen, providers, options.runs or chosen.runs)
    else:
        _measure(options, chosen, device, providers, algorithms)


def _check_own(options: argparse.Namespace, kind: str) -> None:
    """Raise UsageError for a contender of one's own that cannot be measured, before anything is."""
    if kind == "cpu":
        raise UsageError(f"--contender {options.contender}: it is measured on a GPU; --dry-run imports it without one")
    if options.precision != FP32:
        raise UsageError(f"--contender {options.contender}: it is measured in {FP32}: leave out --precision")
    own.imported()


def _measure(
    options: argparse.Namespace,
    chosen: Sweep,
    device: torch.device,
    providers: tuple[str, ...],
    algorithms: frozenset[str] | None,
) -> None:
    variables.refuse()
    slug = environment.device_slug(device)
    measured = Path("results") / slug / chosen.name
    out = options.out or (measured if options.against is None else measured.with_name(f"{chosen.name}-against-best"))
    facts = {**environment.report(device, options.typed), **own.facts()}
    settings = Options(
        device=device,
        providers=providers,
        algorithms=algorithms,
        runs=options.runs or chosen.runs,
        seed=options.seed,
        workspace_limit=chosen.workspace_limit,
        environment=environment.identifier(facts),
        device_slug=slug,
        precision=options.precision,
        epilogue=chosen.epilogue,
        other_times=second_pass.has_other_times(device) and not options.hot_only,
    )
    entrants = None
    if options.against and (options.group is None or options.group.rank == 0):
        entrants = _entrants(options, measured / "measurements.csv", slug, chosen)
    if session.measure(chosen, settings, facts, out, resume=options.resume, entrants=entrants, group=options.group):
        _print_summary(out, chosen, slug, options)


def _entrants(options: argparse.Namespace, csv_path: Path, device: str, chosen: Sweep) -> Entrants:
    """The rivals of --against best; a warning says how many cases have none.

    Raises UsageError where none was ever measured. Either message has the command that measures all rivals.
    """
    all_rivals = _command_of_all_rivals(options, chosen)
    if not stored(csv_path).exists():
        raise UsageError(
            f"--against best: {csv_path} does not exist, so nobody knows the fastest rivals on {device}: "
            f"measure them all first with '{all_rivals}'"
        )
    entrants = fastest_rivals(csv_path, device, options.precision)
    if alone := sum(case.key not in entrants for case in chosen.cases):
        print(
            f"Warning: {csv_path} has no time of a rival for {alone} of {len(chosen.cases)} cases, which are "
            f"measured without rivals: '{all_rivals} --resume' measures the rivals"
        )
    return entrants


def _command_of_all_rivals(options: argparse.Namespace, chosen: Sweep) -> str:
    """The command that measures every contender on the cases of this one."""
    typed = ["python", "-m", "harness.run", "--config", options.config or chosen.name]
    typed += ["--device", options.device] if options.device else []
    for option, values in _slices(options).items():
        typed += [option, *map(str, values)]
    typed += ["--precision", options.precision] if options.precision != FP32 else []
    return shlex.join(typed)


def _print_summary(out: Path, chosen: Sweep, device: str, options: argparse.Namespace) -> None:
    """Print the comparison on the sweep's cases, the number of rows of each status, and where to go from here."""
    frame = read(out / "measurements.csv")
    cases = {case.key for case in chosen.cases}
    mine = frame.loc[[key in cases for key in frame[list(CASE_COLUMNS)].itertuples(index=False, name=None)]]
    results, of_float32 = Results(device, chosen.name, mine, out), {FP32: summary_table, TF32: with_tf32}
    summary = of_float32.get(options.precision, partial(in_channels_last, precision=options.precision))
    print(summary(results) or f"Nothing here to compare: it takes cuConv and rivals in {options.precision.upper()}.")
    print(f"\n{LABELS}")
    measured = mine[mine.precision == options.precision]
    counts = measured["status"].value_counts()
    listed = ", ".join(f"{counts[s]} {s}" for s in STATUSES if s in counts)
    print(f"\n{len(measured)} rows: {listed or 'nothing was measured'}")
    print(f"results: {out / 'measurements.csv'}")
    if len(measured) and counts.get("error") == len(measured):
        raise ResultsError(f"all {len(measured)} rows are errors, the first one: {measured['detail'].iloc[0]}")
    print(_next_step(out, device, chosen.name))
    if device == "cpu":
        print(f"\n{OF_A_CPU}")


def _next_step(out: Path, device: str, sweep: str) -> str:
    """The commands that make tables and figures of a results folder, which must be called DEVICE/SWEEP for them."""
    if out.parent.name != device:
        return f"next: tables and figures read folders called DEVICE/SWEEP, which '--out {out / device / sweep}' fills"
    these = f"--device {device} --sweep {shlex.quote(out.name)}"
    if out.parent.parent != Path("results"):
        these = f"--results {shlex.quote(str(out.parent.parent))} {these}"
    return (
        f"next: 'python -m harness report tables {these}' prints all tables, "
        f"'python -m harness report figures {these}' draws figures into plots/{device}/{out.name}"
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", help="a sweep of configs/ by name, or a YAML file of your own (default: paper; smoke on a CPU)")
    add("--net", nargs="+", metavar="NETWORK", help=f"only these networks: {', '.join(known_networks())}")
    add("--batch", nargs="+", type=int, metavar="N", help="these batch sizes instead of the sweep's")
    add("--filter-size", nargs="+", metavar="K", help="only these filter sizes, such as 3 or 1x7")
    add("--layer", nargs="+", metavar="NAME", help="only the layers of these names")
    add("--provider", nargs="+", metavar="NAME", help=f"only these contenders: {', '.join(PROVIDERS)}")
    add("--contender", type=own_contender, metavar="FILE",
        help="one more contender: a file with conv2d(input, weight, stride, padding, dilation, groups)")  # fmt: skip
    add("--algorithm", nargs="+", metavar="NAME", help="only these algorithms")
    add(
        "--precision",
        choices=MEASURED,
        default=FP32,
        help="in rows of their own, tf32: every contender that can, with TF32 allowed; fp16, bf16: in half precision "
        "(default: fp32)",
    )
    add("--against", choices=["best"], help="a quick look: ours and the three fastest rivals of each case by results/")
    add("--device", help="cuda, cuda:1, ... or cpu (default: the current GPU, or else the CPU)")
    add("--runs", type=int, help=f"timed runs of each algorithm, 1 to {MOST_RUNS} (default: the sweep's)")
    add("--seed", type=int, default=0, help="of the data and of the order of algorithms (default: 0)")
    add("--out", type=command.folder, help="results folder (default: results/DEVICE/SWEEP)")
    add(
        "--resume", action="store_true", help="keep the rows that this machine, versions and code have measured already"
    )
    add(
        "--hot-only",
        action="store_true",
        help="leave out the separated and the cold times of ours and the fastest rivals",
    )
    add("--dry-run", action="store_true", help="print the cases and stop")
    add("--list", action="store_true", help="print the layers, contenders and algorithms to choose from and stop")


def _device(wanted: str | None, group: Group | None) -> torch.device:
    """The device asked for, checked to be there; the GPUs of a host are dealt out to the processes of a group."""
    count = torch.cuda.device_count()
    if group and wanted != "cpu":
        if wanted is not None:
            raise UsageError(f"--device {wanted}: torchrun gives each process its GPU, so leave it out, or use cpu")
        if not count:
            raise UsageError("torchrun started this process on a host without a GPU: use --device cpu")
        return torch.device("cuda", group.local_rank % count)
    if wanted is None:
        return torch.device("cuda", torch.cuda.current_device()) if count else torch.device("cpu")
    present = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if wanted not in present:
        raise UsageError(f"--device {wanted}: this machine has {', '.join(present)}")
    return torch.device("cuda", torch.cuda.current_device()) if wanted == "cuda" else torch.device(wanted)


def _slices(options: argparse.Namespace) -> dict[str, list]:
    """The options that choose some of a sweep's cases, with their values: those that were given."""
    named = {"--net": options.net, "--batch": options.batch, "--filter-size": options.filter_size}
    return {option: values for option, values in (named | {"--layer": options.layer}).items() if values}


def _note_on_a_cpu(options: argparse.Namespace) -> str:
    """The first line printed without a GPU: which contenders and which default sweep are used."""
    parts = [] if options.device else ["No GPU found: measuring the CPU's contenders instead of cuConv and cuDNN."]
    slices = " and ".join(_slices(options))
    if not options.config and slices:
        parts.append(f"The sweep is a slice of paper, by {slices}, instead of smoke, the small sweep for CPUs.")
    elif not options.config:
        parts.append("The sweep is smoke, a small one, because a CPU takes long for all of paper.")
    return " ".join(parts)


def _sweep(options: argparse.Namespace, kind: str) -> Sweep:
    if options.runs is not None and not 1 <= options.runs <= MOST_RUNS:
        raise UsageError(f"--runs {options.runs}: must be from 1 to {MOST_RUNS}")
    # A CPU's default is small, but a slice that was asked for by name is looked for where all layers are.
    config = options.config
    if config is None:
        config = "smoke" if kind == "cpu" and not _slices(options) else "paper"
    _check_name(config, options.out)
    return load_sweep(
        config, networks=options.net, batches=options.batch, filter_sizes=options.filter_size, layers=options.layer
    )


def _check_name(config: str, out: Path | None) -> None:
    """Raise UsageError for a user's file that has the name of a sweep of configs/, whose results it would change."""
    path = Path(config)
    own = config not in known_sweeps() and os.path.isfile(path) and path.resolve().parent != CONFIGS
    if own and out is None and path.stem in known_sweeps():
        raise UsageError(
            f"--config {config}: {path.stem!r} is a sweep of configs/, whose results it would change: rename the file, "
            "or choose a folder with --out"
        )


def _providers(options: argparse.Namespace, kind: str) -> tuple[str, ...]:
    there = [provider for provider in PROVIDERS.values() if provider.device == kind]
    possible = [provider.name for provider in there if options.precision in provider.precisions]
    if not possible:
        raise UsageError(f"--precision {options.precision}: on {kind} everything computes in {FP32}; use a GPU")
    for name in options.provider or ():
        if kind == "cpu" and name in PROVIDERS and name not in possible:
            raise UsageError(f"--provider {name}: it needs a GPU; on a CPU it must be one of {', '.join(possible)}")
        if name not in possible:
            raise UsageError(f"--provider {name}: on {kind} in {options.precision} there are {', '.join(possible)}")
    chosen = options.provider or [name for name in possible if not PROVIDERS[name].optional]
    return tuple(dict.fromkeys([*chosen, *(name for name in possible if is_own(name))]))


def _with_epilogue(chosen: Sweep, providers: tuple[str, ...], are_named: bool) -> tuple[str, ...]:
    """The contenders whose calls have the sweep's epilogue. Raises UsageError where a named one has none, or all."""
    having = tuple(name for name in providers if PROVIDERS[name].epilogues or not chosen.epilogue)
    if having == providers or (having and not are_named):
        return having
    lacking = next(name for name in providers if name not in having)
    able = ", ".join(provider.name for provider in PROVIDERS.values() if provider.epilogues)
    raise UsageError(
        f"--config {chosen.name}: {lacking} has no calls with the epilogue {chosen.epilogue}; {able} have, on a GPU"
    )


def _algorithms(options: argparse.Namespace, providers: tuple[str, ...]) -> frozenset[str] | None:
    for name in options.algorithm or ():
        if any(PROVIDERS[provider].may_have(name, options.precision) for provider in providers):
            continue
        there = names_of(providers, options.precision)
        owners = ", ".join(
            provider.name for provider in PROVIDERS.values() if provider.may_have(name, options.precision)
        )
        if owners and providers == ("cpu",):
            raise UsageError(f"--algorithm {name}: it is of {owners} and needs a GPU; {there}")
        raise UsageError(f"--algorithm {name}: {there}")
    return frozenset(options.algorithm) if options.algorithm else None


def _print_list(chosen: Sweep, kind: str, precision: str) -> None:
    print(f"networks: {', '.join(known_networks())}")
    for provider in PROVIDERS.values():
        if provider.device == kind:
            names = ", ".join(provider.algorithms_in(precision)) or "engines, listed by cuDNN for each case"
            print(f"provider {provider.name}{', only where --provider names it' * provider.optional}: {names}")
    batch = chosen.cases[0].batch
    layers = [case for case in chosen.cases if case.batch == batch]
    print(f"{LABELS}\n{len(layers)} layers of {chosen.name}, labelled at batch {batch}, network: names")
    print("Layers of one shape stand on one line, with ';' between their names.")
    for case in layers:
        print(f"  {case.label:22} {case.networks_cell}: {case.layers_cell}")


def _print_cases(chosen: Sweep, providers: tuple[str, ...], runs: int) -> None:
    print(LABELS)
    for case in chosen.cases:
        print(f"{case.label:22} {case.networks_cell}: {case.layers_cell}")
    print(f"{len(chosen.cases)} cases, {runs} runs of each algorithm of {', '.join(providers)}")


main = command.program(
    "harness.run",
    "Measure convolutions: cuConv against every cuDNN algorithm. Options take several values.",
    _run,
    _add_options,
    go_on="go on with the same command and --resume",
)

if __name__ == "__main__":
    sys.exit(main())
