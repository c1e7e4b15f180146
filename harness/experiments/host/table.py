"""The table of a device's host.csv: the host time of a call, and torch's."""

from __future__ import annotations

from harness.experiments.host.rows import CALL, HOST
from harness.store.markdown import markdown
from harness.sweep.comparisons import Results

OURS, TORCH = ("cuconv", "auto", "new"), ("torch", "default", "new")


def host_table(results: Results) -> str:
    """A line for each layer: the host microseconds of a call of conv2d and of torch's, each with a new output.

    Sentences say on how many layers ours costs more, and what first calls cost where the file has them. Without a
    host.csv of the device a sentence says what to run.
    Raises ResultsError where the file is something else.
    """
    rows = HOST.find(results.folder.parent)
    if rows is None:
        return HOST.missing(results.device)
    times = rows.set_index(list(CALL)).median_us
    layers = [layer for layer in dict.fromkeys(rows.layer) if (layer, *TORCH) in times.index]
    body = [[layer, *(f"{times[layer, *kind]:.1f}" for kind in (OURS, TORCH))] for layer in layers]
    dearer = sum(bool(times[layer, *OURS] > times[layer, *TORCH]) for layer in layers)
    table = markdown(["HW-N-K-M-C, host us", "cuconv.conv2d", "torch"], body)
    first = [
        f"The first call for {name}, with its kernels at hand, costs the host {times[name, *OURS]:,.0f} us."
        for name in dict.fromkeys(rows.layer)
        if name not in layers
    ]
    sentence = f"On {dearer} of {len(layers)} layers a call of cuConv costs the host more than torch's."
    return "\n".join([f"{table}\n\n{sentence}", *first])
