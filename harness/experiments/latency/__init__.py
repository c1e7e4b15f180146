"""How long the first result takes, of a new input size and of a new process: cuConv and torch.

`python -m harness latency` starts a fresh process for everything that it times, so that plan caches, loaded modules and
cuDNN's caches are empty. plan.py says which processes, run.py starts them, measure.py and start.py are their programs,
rows.py reads and writes latency.csv, table.py makes tables of it. Only measure.py and start.py use a GPU.
"""
