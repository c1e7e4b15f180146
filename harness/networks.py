"""python -m harness.networks: measure whole networks, cuConv against torch, and print which was faster."""

import sys

from harness.experiments.networks.command import main

if __name__ == "__main__":
    sys.exit(main())
