"""Small made-up measurements for the tests of what reads them: written as the sweep writes, by records."""

import json
from pathlib import Path

import pandas as pd

from harness.experiments.copies import rows as bandwidth
from harness.sweep.comparisons import Results
from harness.sweep.records import Measurement, ResultsFolder

GPU = "nvidia-test"  # the name of a device under results/


def row(
    algorithm: str = "auto",
    us: float | None = None,
    *,
    provider: str = "cuconv",
    status: str = "ok",
    precision: str = "fp32",
    error: float = 1e-7,
    batch: int = 1,
    h: int = 7,
    w: int = 7,
    c: int = 832,
    m: int = 32,
    k: int = 1,
    pad: int | None = None,
    kw: int | None = None,
    pad_w: int | None = None,
    stride: int = 1,
    groups: int = 1,
    detail: str = "",
    workspace: int | None = None,
    environment: str = "",
    separated: float | None = None,
    cold: float | None = None,
) -> Measurement:
    """One row, by default cuConv's auto on the paper's 7-1-1-32-832, of 10 us.

    us, separated and cold are the microseconds of its three times; without the last two it has only the first. A row
    over the limit of workspace has a time where us is given. Any other status than "ok" takes the time away.
    """
    ok = status == "ok"
    kw, pad = kw or k, (k - 1) // 2 if pad is None else pad
    pad_w = pad_w if pad_w is not None else pad if kw == k else (kw - 1) // 2
    us = us or 10.0 if ok else us if status == "workspace_exceeded" else None
    return Measurement(
        networks="googlenet", layers="5a_5x5red", batch=batch, h=h, w=w, c=c, m=m, k=k, pad=pad,
        kw=kw, pad_w=pad_w, provider=provider, algorithm=algorithm, precision=precision,
        stride=stride, groups=groups, status=status, detail=detail or ("" if ok else "told why"),
        rel_l2_error=error if us else None, runs_us=(us, us, us) if us else (), environment=environment,
        workspace_bytes=workspace,
        separated_runs_us=(separated,) * 3 if separated else (), cold_runs_us=(cold,) * 3 if cold else (),
    )  # fmt: skip


def write(results: Path, rows: list[Measurement], device: str = GPU, sweep: str = "paper") -> Path:
    """Write results/DEVICE/SWEEP/measurements.csv with these rows, and return its path."""
    with ResultsFolder(results / device / sweep) as folder:
        for measurement in rows:
            folder.append(measurement)
    return folder.csv_path


def commands(folder: Path) -> list[str]:
    """The commands that measured a folder, by its environment.json."""
    stored = json.loads((folder / "environment.json").read_text())["environments"]
    return [entry["command"] for facts in stored.values() for entry in facts["commands"]]


def measured(results: Path, rows: list[Measurement], device: str = GPU) -> Results:
    """The rows as reports read them, by way of the file."""
    return Results.read(write(results, rows, device).parent)


def copies(mean_us: dict[int, float]) -> pd.DataFrame:
    """The microseconds of copies by their bytes, as harness.experiments.copies.measure measures them."""
    return pd.DataFrame(
        [[size, "copy", *[us] * 10] for size, us in mean_us.items()], columns=list(bandwidth.BANDWIDTH.columns)
    )


# A sweep whose every figure can be worked out by hand. Speedups of auto over the best of cuDNN:
#   1x1, batch 1:  30/10 = 3 (7-32-832),  20/10 = 2 (7-48-832),  10/20 = 0.5 (14-16-480);  wins 2 of 3
#   1x1, batch 8:  a tie, 1;  auto could not run;                                            wins 0 of 2
#   1x1, batch 128 (beyond the figures of the paper):  40/10 = 4;                            wins 1 of 1
#   3x3, batch 1:  10/40 = 0.25;                                                             wins 0 of 1
#   5x5, batch 1:  no rival ran, so it is compared with nothing
SWEEP = [
    row("auto", 10.0), row("two_stage", 60.0), row("implicit_gemm", 30.0, provider="cudnn", error=4e-8),
    row("winograd", 1.0, provider="cudnn", precision="tf32"), row("bmm", 5.0, provider="cublas"),
    row("auto", 10.0, m=48), row("implicit_gemm", 25.0, provider="cudnn", m=48),
    row("eng3_k11=2", 20.0, provider="cudnn_engine", m=48),
    row("eng3_k11=1", status="error", provider="cudnn_engine", m=48),
    row("auto", 20.0, h=14, w=14, m=16, c=480), row("implicit_gemm", 10.0, provider="cudnn", h=14, w=14, m=16, c=480),
    row("bmm", 40.0, provider="cublas", h=14, w=14, m=16, c=480),
    row("auto", 15.0, batch=8), row("default", 15.0, provider="torch", batch=8),
    row("auto", status="incorrect", batch=8, m=48), row("default", 15.0, provider="torch", batch=8, m=48),
    row("auto", 10.0, batch=128), row("eng3_k11=1", 40.0, provider="cudnn_engine", batch=128),
    row("auto", 40.0, k=3), row("winograd", 10.0, provider="cudnn", k=3),
    row("auto", 10.0, k=5), row("fft", status="unsupported", provider="cudnn", k=5),
]  # fmt: skip

# Hot, separated and cold speedups of auto over the best of cuDNN: batch 1: 30/10 = 3, 24/12 = 2 (over another rival),
# 25/20 = 1.25; batch 8: 10/20 = 0.5, 16/20 = 0.8, 50/25 = 2. Of two_stage, hot 30/60 = 0.5, separated 24/60 = 0.4, not
# measured cold.
THREE_TIMES = [
    row("auto", 10.0, separated=12.0, cold=20.0), row("two_stage", 60.0, separated=60.0),
    row("gemm", 30.0, provider="cudnn", separated=30.0, cold=50.0),
    row("fft", 40.0, provider="cudnn", separated=24.0, cold=25.0), row("winograd", 90.0, provider="cudnn"),
    row("auto", 20.0, batch=8, separated=20.0, cold=25.0),
    row("gemm", 10.0, batch=8, provider="cudnn", separated=16.0, cold=50.0),
]  # fmt: skip
