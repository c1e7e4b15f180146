"""The program whose start is timed: it reads a model from a file, calls it once, and ends. Needs a GPU.

    python -m harness.experiments.latency.start FILE SINCE

SINCE is time.time() of the moment before the process was started. So it imports nothing but torch and what the file
needs. It writes a line of JSON: the milliseconds from then to the result.
"""

from __future__ import annotations

import sys
import time

import torch


def main() -> None:
    """Time the start of this process."""
    file, since = sys.argv[1:]
    torch.backends.cudnn.allow_tf32 = False
    model = torch.load(file, weights_only=False)
    with torch.inference_mode():
        model(torch.randn(1, 3, 224, 224, device="cuda"))
    torch.cuda.synchronize()
    first_ms = 1e3 * (time.time() - float(since))
    print(f'{{"height": 224, "width": 224, "first_ms": {first_ms:.9g}, "second_ms": null, "again_ms": null}}')


if __name__ == "__main__":
    main()
