"""Reports of the machine, libraries and code that a measurement depends on, and environment.json, which keeps them.

environment.json maps an identifier to each report. Rows of measurements.csv carry the identifier, so that rows of
different days, versions or commits can share a results folder. Some files carry none: the commands in the reports say
which report is of which file. A report never raises: a fact that cannot be read is null.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import libcudnn
from harness.errors import ResultsError, UsageError
from harness.store import code
from harness.store.files import read_json, write_whole
from harness.variables import recorded, refuse

if TYPE_CHECKING:  # imported where a device is asked, so that reports of CSV files need no torch
    import torch

ENVIRONMENT = "environment.json"
ROOT = Path(__file__).resolve().parents[2]
# The code that a row may depend on; a change of harness/report makes no row one of other code.
ROOMS = ("cases", "stopwatch", "contenders", "sweep", "experiments", "tune")
MODULES = ("experiment", "isolation", "libcudnn", "precision", "variables")
MEASURING = ("cuconv", *(f"harness/{room}" for room in ROOMS), *(f"harness/{module}.py" for module in MODULES))
OWN_FACT = "contender"  # the hash of a contender of one's own; it concerns that contender's rows alone
# The facts that may differ between two commands whose rows are still of one measurement.
CHANGEABLE = ("commit", "clocks", "commands", "gpu_uuid", OWN_FACT)
CHANGEABLE_BESIDE_A_GPU = (*CHANGEABLE, "cpu")  # a GPU's times are its own


def device_slug(device: torch.device | None = None) -> str:
    """The name of a device under results/ and plots/, "nvidia-h200" or "cpu"; None stands for the current device."""
    import torch

    if (device is not None and device.type == "cpu") or not torch.cuda.is_available():
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).strip("-")


def results_folder(name: str) -> Path:
    """The folder results/DEVICE/NAME of the current device, which may not exist yet."""
    return ROOT / "results" / device_slug() / name


def fingerprint(*places: str) -> str:
    """A hash of the code in files and folders of the project: of Python, CUDA and the constants of the cost models.

    It covers the names of the files and their code, but no comments, docstrings and formatting.
    """
    digest = hashlib.sha256()
    for place in map(ROOT.joinpath, places):
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".toml"):
                digest.update(f"{path.relative_to(ROOT)}\0{code.digest(path)}".encode())
    return digest.hexdigest()[:16]


def current_gpu(what: str, instead: str = "") -> torch.device:
    """The GPU that a command measures on. Raises UsageError without one, or where a variable would change its times.

    what: the plural that is measured. instead: the end of the message, what can be done without a GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise UsageError(f"{what} are measured on an NVIDIA GPU, and torch sees none{instead}")
    refuse()
    return torch.device("cuda", torch.cuda.current_device())


def visible_gpus() -> list[str]:
    """The GPUs of this process, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(gpu) for gpu in range(count)]


def report(device: torch.device, command: str) -> dict[str, Any]:
    """The facts about the device, the libraries and the code, ready for JSON; command is the line the user typed."""
    import torch

    facts = _gpu_facts(device) if device.type == "cuda" else _cpu_facts()
    variables = recorded()
    if variables:  # left out where none is set: most reports have none
        facts["variables"] = variables
    return {
        **facts,
        "cpu": _try(_cpu_name) or platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "code": fingerprint(*MEASURING),
        "commit": commit(),
        "commands": [{"command": command, "date": datetime.now(UTC).isoformat(timespec="seconds")}],
    }


def commit() -> str | None:
    """The git commit, with "-dirty" where the code differs from it; $CUCONV_COMMIT where git cannot tell."""
    head = _try(lambda: _git("rev-parse", "--verify", "HEAD")) if (ROOT / ".git").exists() else None
    if head is None:
        return os.environ.get("CUCONV_COMMIT")
    changed = _try(lambda: _git("status", "--porcelain", "--", "cuconv", "harness", "configs"))
    return f"{head}-dirty" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def identifier(facts: dict[str, Any]) -> str:
    """A short name for a report: equal for equal machine, versions, code and commit."""
    stable = {k: v for k, v in facts.items() if k not in ("clocks", "commands")}
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:8]


def comparable(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two reports are of equal machine, versions and code, so that their rows are of one measurement."""
    changeable = CHANGEABLE_BESIDE_A_GPU if one.get("gpu") else CHANGEABLE
    return all(one.get(k) == other.get(k) for k in {*one, *other} - set(changeable))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The reports of a folder's environment.json by identifier; none where the file is missing or damaged."""
    try:
        return _stored(folder / ENVIRONMENT)
    except ResultsError:
        return {}


def _stored(path: Path) -> dict[str, dict[str, Any]]:
    """The reports of an environment.json; none where it is missing. Raises ResultsError where it is damaged."""
    if not path.exists():
        return {}
    remedy = "restore it, or delete it with the results beside it"
    data = read_json(path, remedy)
    stored = data.get("environments") if isinstance(data, dict) else None
    if isinstance(stored, dict) and all(map(_is_report, stored.values())):
        return stored
    raise ResultsError(f"{path} cannot be read (it has no reports by identifier): {remedy}")


def _is_report(facts: object) -> bool:
    commands = facts.get("commands", []) if isinstance(facts, dict) else None
    return isinstance(commands, list) and all(isinstance(command, dict) for command in commands)


class EnvironmentFile:
    """environment.json of a results folder: {"environments": {identifier: report}}."""

    def __init__(self, folder: Path, write: Callable[[str, str], None] | None = None):
        """Raises ResultsError for a damaged file, which would otherwise be written anew without its reports.

        write: replaces a file of the folder, by its name, as an open `sweep.records.ResultsFolder` does.
        """
        self._write_file = write or (lambda name, content: write_whole(folder / name, content))
        self.environments = _stored(folder / ENVIRONMENT)

    def enter(self, facts: dict[str, Any]) -> str:
        """Add a report, or its command to an equal report that is there already; returns the identifier."""
        name = identifier(facts)
        commands = self.environments.get(name, {}).get("commands", [])
        self.environments[name] = {**facts, "commands": commands + facts["commands"]}
        self._write()
        return name

    def alike(self, name: str) -> set[str]:
        """The identifiers of the reports of equal machine, versions and code, among them this one."""
        own = self.environments[name]
        return {other for other, facts in self.environments.items() if comparable(own, facts)}

    def keep(self, used: set[str]) -> None:
        """Drop the reports that no row refers to any more."""
        self.environments = {name: facts for name, facts in self.environments.items() if name in used}
        self._write()

    def _write(self) -> None:
        self._write_file(ENVIRONMENT, json.dumps({"environments": self.environments}, indent=2) + "\n")


def report_gpu(folder: Path, command: str, alone: bool) -> None:
    """Enter a report of the current GPU into environment.json of a folder that exists.

    alone: the command replaces everything that was measured there, so other reports are dropped.
    """
    import torch

    environments = EnvironmentFile(folder)
    new = environments.enter(report(torch.device("cuda", torch.cuda.current_device()), command))
    if alone:
        environments.keep({new})


def _gpu_facts(device: torch.device) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(device)
    library = _try(libcudnn.loaded) or (None, None)
    nvml = _try(lambda: _nvml_facts(device)) or {}
    return {
        "gpu": properties.name,
        "gpu_uuid": str(properties.uuid),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": nvml.get("driver"),
        "power_limit_w": nvml.get("power_limit_w"),
        "clocks": nvml.get("clocks"),
        "cuda_runtime": torch.version.cuda,
        "cudnn": library[1],
        "cudnn_library": Path(library[0]).name if library[0] else None,
        "cupy": version("cupy-cuda13x") or version("cupy-cuda12x"),
        "cudnn_frontend": version("nvidia-cudnn-frontend"),
        "nvrtc": _try(lambda: ".".join(map(str, _nvrtc_version()))),
    }


def _nvml_facts(device: torch.device) -> dict[str, Any]:
    import pynvml
    import torch

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "clocks": {
                "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "sm_max_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            },
        }
    finally:
        pynvml.nvmlShutdown()


def _nvrtc_version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return major, minor


def _cpu_facts() -> dict[str, Any]:
    import torch

    return {"gpu": None, "threads": torch.get_num_threads()}


def _cpu_name() -> str:
    line = next(x for x in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if x.startswith("model name"))
    return line.split(":", 1)[1].strip()


def version(package: str) -> str | None:
    """The version of an installed package, None where it is not installed."""
    return _try(lambda: metadata.version(package))


def _try(read: Callable[[], Any]) -> Any:
    """The value, or None: a report must not stop a measurement."""
    try:
        return read()
    except Exception:
        return None
