"""python -m harness VERB: the benchmark's experiments, and what compares and shows their results."""

import sys

from harness.command import verb

VERBS = {
    "run": ("harness.run", "time single convolutions: the paper's sweep, another one, or a slice"),
    "networks": ("harness.experiments.networks.command", "time whole networks, beside torch"),
    "latency": ("harness.experiments.latency.command", "time first results of new input sizes and new processes"),
    "accuracy": ("harness.experiments.accuracy.measure", "errors on data of far from ordinary magnitudes"),
    "copies": ("harness.experiments.copies.measure", "times of plain copies on the device"),
    "conditions": ("harness.experiments.conditions.measure", "times under load, and on operands that change addresses"),
    "host": ("harness.experiments.host.measure", "host time of a call, beside torch's"),
    "kernels": ("harness.experiments.kernels.measure", "device time kernel by kernel, and Nsight Compute's counters"),
    "evidence": ("harness.evidence", "what the pages show, by every GPU of this host"),
    "tune": ("harness.tune.command", "measure configurations, and fit the cost models to them"),
    "compare": ("harness.compare", "what became faster or slower from one measurement to another"),
    "report": ("harness.report.command", "tables, figures and pages from the results"),
}

if __name__ == "__main__":
    sys.exit(verb("harness", VERBS, sys.argv[1:]))
