"""What cannot run with every Python that Moonmesh runs with."""

from __future__ import annotations

from tests.support.coordination import BACKENDS

collect_ignore = [] if "etcd" in BACKENDS else ["test_coordination_group.py"]
