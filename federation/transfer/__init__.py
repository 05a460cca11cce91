"""Moving blocks: what is asked of whom, the frames on the wire, staging, serving, admission.

Imports catalog, limits, trust and `local_group`; `peers`, the gateway and the client import it.
"""
