"""The algorithms: one pair of files with the same stem each, NAME.py and NAME.cu, registered here.

An algorithm is a module with

    SOURCE      the path of its .cu file
    VARIANTS    the macro settings that it may compile, as mappings
    configure(problem, device) -> a frozen, printable configuration with `workspace_bytes`; a pure
                function that raises UnsupportedProblem
    launch(problem, configuration, launcher, input, weight, output, workspace) enqueues; the operands
                are device pointers, the launcher a cuconv.jit.Launcher
"""

from cuconv.algorithms import two_stage

ALGORITHMS = {"two_stage": two_stage}
