"""python -m harness.run: measure a sweep, or a slice of one, and print which side was faster."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import torch

from harness import command, precision
from harness.catalogue import LABELS, Sweep, known_networks, load_sweep
from harness.errors import UsageError
from harness.measure import sweep
from harness.precision import FP32, PRECISIONS
from harness.registry import PROVIDERS
from harness.report.provenance import OF_A_CPU
from harness.report.speedups import summary_table, with_tf32
from harness.results import environment
from harness.results.comparisons import Results
from harness.results.records import CASE_COLUMNS, MAX_RUNS, STATUSES, ResultsFolder, read
from harness.results.rivals import Entrants, fastest_rivals


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a lost GPU, 2 for a user's mistake, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    options.command = environment.command_line("harness.run", arguments)
    precision.set_for_process(options.precision)
    return command.exit_code("harness.run", lambda: _run(options), go_on="go on with the same command and --resume")


def _run(options: argparse.Namespace) -> None:
    device = _device(options.device)
    if options.device is None and device.type == "cpu":
        print("No GPU found: measuring the CPU's contenders instead of cuConv and cuDNN.")
    chosen = _sweep(options, device)
    if options.list:
        _print_list(chosen, device)
    elif options.dry_run:
        _print_cases(chosen, _providers(options, device), options.runs or chosen.runs)
    else:
        _measure(options, chosen, device)


def _measure(options: argparse.Namespace, chosen: Sweep, device: torch.device) -> None:
    providers = _providers(options, device)
    algorithms = _algorithms(options, providers)
    slug = environment.device_slug(device)
    measured = Path("results") / slug / chosen.name
    out = options.out or (measured if options.against is None else measured.with_name(f"{chosen.name}-against-best"))
    entrants = _entrants(options, measured / "measurements.csv", slug, chosen) if options.against else None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with ResultsFolder(out) as folder:
        facts = environment.report(device, options.command)
        environments = environment.EnvironmentFile(folder.folder)
        # Before this command's own entry: the reports of an equal machine, with equal versions and code.
        same = {name for name, other in environments.environments.items() if environment.comparable(facts, other)}
        settings = sweep.Options(
            device=device,
            providers=providers,
            algorithms=algorithms,
            runs=options.runs or chosen.runs,
            seed=options.seed,
            workspace_limit=chosen.workspace_limit,
            environment=environments.enter(facts),
            done=frozenset(key for key in folder.rows if folder.cell(key, "environment") in same)
            if options.resume
            else frozenset(),
            entrants=entrants,
            device_name=slug,
            precision=options.precision,
        )
        try:
            sweep.run(chosen, settings, folder)
        finally:
            environments.keep({folder.cell(key, "environment") for key in folder.rows})
    _print_summary(out, chosen, slug, options)


def _entrants(options: argparse.Namespace, csv_path: Path, device: str, chosen: Sweep) -> Entrants:
    """The rivals of --against best. Raises UsageError with the command that measures all rivals, where none has."""
    if not csv_path.exists():
        slices = {"--net": options.net, "--batch": options.batch, "--filter-size": options.filter_size}
        typed = ["python", "-m", "harness.run", "--config", options.config or chosen.name]
        typed += ["--device", options.device] if options.device else []
        for option, values in (slices | {"--layer": options.layer}).items():
            typed += [option, *map(str, values)] if values else []
        typed += ["--precision", options.precision] if options.precision != FP32 else []
        raise UsageError(
            f"--against best: {csv_path} does not exist, so nobody knows the fastest rivals on {device}: "
            f"measure them all first with '{shlex.join(typed)}'"
        )
    return fastest_rivals(csv_path, device, options.precision)


def _print_summary(out: Path, chosen: Sweep, device: str, options: argparse.Namespace) -> None:
    """Print the comparison on the sweep's cases, the number of rows of each status, and where to go from here."""
    frame = read(out / "measurements.csv")
    cases = {case.key for case in chosen.cases}
    mine = frame[[key in cases for key in frame[list(CASE_COLUMNS)].itertuples(index=False, name=None)]]
    summary = summary_table if options.precision == FP32 else with_tf32
    print(
        summary(Results(device, chosen.name, mine, out))
        or "Nothing here to compare: it takes cuConv, and rivals with TF32 allowed."
    )
    print(f"\n{LABELS}")
    measured = mine[mine.precision == options.precision]
    counts = measured["status"].value_counts()
    print(f"\n{len(measured)} rows: " + ", ".join(f"{counts[s]} {s}" for s in STATUSES if s in counts))
    print(f"results: {out / 'measurements.csv'}")
    print(_next_step(out, device, options.out is None))
    if device == "cpu":
        print(f"\n{OF_A_CPU}")


def _next_step(out: Path, device: str, in_results: bool) -> str:
    """The commands that make tables and figures of a results folder; they look under results/ by default."""
    if not in_results:
        return "next: tables and figures read results/DEVICE/SWEEP, which the same command fills without --out"
    these = f"--device {device} --sweep {out.name}"
    return (
        f"next: 'python -m harness.report.tables {these}' prints all tables, "
        f"'python -m harness.report.figures {these}' draws figures into plots/{device}/{out.name}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.run",
        description="Measure convolutions: cuConv against every cuDNN algorithm. Options take several values.",
    )
    add = parser.add_argument
    add("--config", help="a sweep of configs/ by name, or a YAML file of your own (default: paper; smoke on a CPU)")
    add("--net", nargs="+", metavar="NETWORK", help=f"only these networks: {', '.join(known_networks())}")
    add("--batch", nargs="+", type=int, metavar="N", help="these batch sizes instead of the sweep's")
    add("--filter-size", nargs="+", type=int, metavar="K", help="only these filter sizes")
    add("--layer", nargs="+", metavar="NAME", help="only the layers of these names")
    add("--provider", nargs="+", metavar="NAME", help=f"only these contenders: {', '.join(PROVIDERS)}")
    add("--algorithm", nargs="+", metavar="NAME", help="only these algorithms")
    add(
        "--precision",
        choices=PRECISIONS,
        default=FP32,
        help="tf32: every contender that can, with TF32 allowed, in rows of their own (default: fp32)",
    )
    add("--against", choices=["best"], help="a quick look: ours and the three fastest rivals of each case by results/")
    add("--device", help="cuda, cuda:1, ... or cpu (default: the current GPU, or else the CPU)")
    add("--runs", type=int, help=f"timed runs of each algorithm, 1 to {MAX_RUNS} (default: the sweep's)")
    add("--seed", type=int, default=0, help="of the data and of the order of algorithms (default: 0)")
    add("--out", type=Path, help="results folder (default: results/DEVICE/SWEEP)")
    add(
        "--resume", action="store_true", help="keep the rows that this machine, versions and code have measured already"
    )
    add("--dry-run", action="store_true", help="print the cases and stop")
    add("--list", action="store_true", help="print the layers, contenders and algorithms to choose from and stop")
    return parser


def _device(wanted: str | None) -> torch.device:
    """The device asked for, checked to be there."""
    count = torch.cuda.device_count()
    if wanted is None:
        return torch.device("cuda", torch.cuda.current_device()) if count else torch.device("cpu")
    present = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if wanted not in present:
        raise UsageError(f"--device {wanted}: this machine has {', '.join(present)}")
    return torch.device("cuda", torch.cuda.current_device()) if wanted == "cuda" else torch.device(wanted)


def _sweep(options: argparse.Namespace, device: torch.device) -> Sweep:
    if options.runs is not None and not 1 <= options.runs <= MAX_RUNS:
        raise UsageError(f"--runs {options.runs}: must be from 1 to {MAX_RUNS}")
    # A CPU's default is small, but a slice that was asked for by name is looked for where all layers are.
    sliced = options.net or options.batch or options.filter_size or options.layer
    config = options.config or ("smoke" if device.type == "cpu" and not sliced else "paper")
    return load_sweep(
        config, networks=options.net, batches=options.batch, filter_sizes=options.filter_size, layers=options.layer
    )


def _providers(options: argparse.Namespace, device: torch.device) -> tuple[str, ...]:
    there = [provider for provider in PROVIDERS.values() if provider.device == device.type]
    possible = [provider.name for provider in there if options.precision in provider.precisions]
    if not possible:
        raise UsageError(f"--precision {options.precision}: on {device.type} everything computes in {FP32}; use a GPU")
    for name in options.provider or ():
        if name not in possible:
            raise UsageError(
                f"--provider {name}: on {device.type} in {options.precision} there are {', '.join(possible)}"
            )
    return tuple(options.provider or possible)


def _algorithms(options: argparse.Namespace, providers: tuple[str, ...]) -> frozenset[str] | None:
    known = [name for provider in providers for name in PROVIDERS[provider].algorithms]
    for name in options.algorithm or ():
        # cuDNN names its engines, and lists them case by case.
        if name not in known and not ("cudnn_engine" in providers and name.startswith("eng")):
            raise UsageError(f"--algorithm {name}: {', '.join(providers)} have {', '.join(known)}")
    return frozenset(options.algorithm) if options.algorithm else None


def _print_list(chosen: Sweep, device: torch.device) -> None:
    print(f"networks: {', '.join(known_networks())}")
    for provider in PROVIDERS.values():
        if provider.device == device.type:
            names = ", ".join(provider.algorithms) or "engines, listed by cuDNN for each case"
            print(f"provider {provider.name}: {names}")
    print(f"{LABELS}\nlayers of {chosen.name}, labelled at batch {chosen.cases[0].batch}, network: names")
    for case in chosen.cases:
        if case.batch == chosen.cases[0].batch:
            print(f"  {case.label:22} {case.networks_cell}: {case.layers_cell}")


def _print_cases(chosen: Sweep, providers: tuple[str, ...], runs: int) -> None:
    print(LABELS)
    for case in chosen.cases:
        print(f"{case.label:22} {case.networks_cell}: {case.layers_cell}")
    print(f"{len(chosen.cases)} cases, {runs} runs of each algorithm of {', '.join(providers)}")


if __name__ == "__main__":
    sys.exit(main())
