"""python -m harness.experiments VERB: the smaller experiments, each in a folder of its own."""

import sys

from harness.command import verb

VERBS = {
    "accuracy": ("harness.experiments.accuracy.measure", "errors on data of far from ordinary magnitudes"),
    "copies": ("harness.experiments.copies.measure", "times of plain copies on the device"),
    "host": ("harness.experiments.host.measure", "host time of a call, beside torch's"),
    "kernels": ("harness.experiments.kernels.measure", "device time kernel by kernel, and Nsight Compute's counters"),
}

if __name__ == "__main__":
    sys.exit(verb("harness.experiments", VERBS, sys.argv[1:]))
