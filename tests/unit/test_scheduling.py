"""Shares of the cores: what is asked of the kernel, and that nothing breaks where it is not permitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from local_group import scheduling
from local_group.scheduling import come_first, in_autogroup, one_share

V1 = "9:name=systemd:/\n3:cpuset:/a\n2:cpu,cpuacct:{}\n0::/\n"
V2 = "0::{}\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel with autogroups, and this process in the root cgroup of version 2."""
    for name in ("ENABLED", "OWN_AUTOGROUP", "OWN_CGROUPS", "CGROUPS"):
        monkeypatch.setattr(scheduling, name, tmp_path / name)
    (tmp_path / "ENABLED").write_text("1\n")
    (tmp_path / "OWN_CGROUPS").write_text(V2.format("/"))
    (tmp_path / "CGROUPS").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("cgroups", "found"),
    [
        (V1.format("/"), True),
        (V1.format("/system.slice/moonmesh.service"), False),
        (V2.format("/"), True),
        (V2.format("/user.slice"), False),
    ],
)
def test_a_process_in_a_cpu_cgroup_is_in_no_autogroup(
    kernel: Path, cgroups: str, found: bool
) -> None:
    (kernel / "OWN_CGROUPS").write_text(cgroups)
    assert in_autogroup() is found
    (kernel / "ENABLED").write_text("0\n")
    assert not in_autogroup()


def test_a_kernel_without_autogroups_is_left_alone(kernel: Path) -> None:
    (kernel / "ENABLED").unlink()
    assert come_first()
    assert not (kernel / "OWN_AUTOGROUP").exists()


def test_a_session_asks_for_a_larger_share(kernel: Path) -> None:
    assert come_first()
    assert (kernel / "OWN_AUTOGROUP").read_text() == "-10"


def test_what_is_not_permitted_is_said_and_breaks_nothing(kernel: Path) -> None:
    (kernel / "OWN_AUTOGROUP").mkdir()
    (kernel / "CGROUPS").rmdir()
    assert not come_first()
    with one_share() as shared:
        assert not shared


def test_one_share_is_a_cgroup_that_is_left_at_the_end(kernel: Path) -> None:
    root = kernel / "CGROUPS"
    with one_share() as shared:
        assert shared
        assert (root / "moonmesh" / "cgroup.procs").read_text() == str(os.getpid())
    assert (root / "cgroup.procs").read_text() == str(os.getpid())


def test_version_1_has_a_tree_for_cpu(kernel: Path) -> None:
    (kernel / "CGROUPS" / "cpu").mkdir()
    (kernel / "CGROUPS" / "cpu" / "cgroup.procs").touch()
    with one_share():
        assert (kernel / "CGROUPS" / "cpu" / "moonmesh" / "cgroup.procs").exists()


@pytest.mark.parametrize(
    ("handed_down", "found"),
    [("cpuset cpu io memory\n", True), ("cpuset io\n", False), ("\n", False), (None, False)],
)
def test_version_2_has_to_hand_the_cpu_controller_down(
    kernel: Path, handed_down: str | None, found: bool
) -> None:
    root = kernel / "CGROUPS"
    (root / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    if handed_down is not None:
        (root / "cgroup.subtree_control").write_text(handed_down)
    with one_share() as shared:
        assert shared is found
    assert (root / "moonmesh").exists() is found, "a cgroup that changes nothing is not made"
