"""python -m harness.latency: time the first results of new input sizes and of new processes."""

import sys

from harness.experiments.latency.command import main

if __name__ == "__main__":
    sys.exit(main())
