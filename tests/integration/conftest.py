"""What cannot run with every Python that Moonmesh runs with."""

from __future__ import annotations

from tests.support.coordination import BACKENDS

NEED_ETCD = ["test_coordination_group.py", "test_gossip_bad_days.py"]
collect_ignore = [] if "etcd" in BACKENDS else NEED_ETCD
