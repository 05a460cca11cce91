"""An hour of load and faults, and whether anything grows: memory, descriptors, threads.

`trend` is arithmetic alone; `watching` looks at processes. Imports `chaos.topology`; `chaos.cli` imports it.
"""
