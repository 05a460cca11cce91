"""Who leads a group, and in which epoch: a file, etcd, or Raft among the group's gateways.

`base` is the interface; `lease` and `machine` decide, without IO; `file`, `etcd` and `raft` do the IO.
"""
