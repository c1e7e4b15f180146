"""The errors that end a command of the harness. The message of each is one sentence for the user.

`harness.command.exit_code` prints it without a traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """A mistake that a user can mend: the message has the value, what is allowed, and the remedy."""


class UsageError(UserError):
    """A command line that cannot be carried out."""


class CatalogueError(UserError):
    """A file of layers, or a choice of layers, that cannot be used."""


class ResultsError(UserError):
    """A file or folder of results that cannot be used as asked."""


class GpuLost(RuntimeError):
    """A kernel broke the CUDA context, or no process can begin to measure. Nothing more can run in this process."""
