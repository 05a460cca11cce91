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


SERVICE = "/system.slice/moonmesh.service"
HYBRID = "1:name=systemd:{0}\n0::{0}\n"
"""Version 1 for all but cpu, which is in version 2."""


def weigh(tree: Path, *cgroups: str) -> None:
    """Makes cgroups of version 2 that have the cpu controller, and so a weight; "" is the topmost."""
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    for name in cgroups:
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name / "cpu.weight").write_text("100\n")


@pytest.mark.parametrize(
    ("cgroups", "weighed", "found"),
    [
        # Version 1: the cpu controller's own tree counts, whatever the others and version 2 say.
        (V1.format("/"), (), True),
        (V1.format(SERVICE), (), False),
        ("3:cpuset:/a\n2:cpu:/\n1:memory:/b\n0::/c\n", ("c",), True),
        ("3:cpuacct:/a\n2:cpu:/b\n0::/\n", (), False),
        # Version 2: the nearest cgroup with the cpu controller, if any, that is not the root.
        (V2.format("/"), (), True),
        (V2.format("/"), ("system.slice",), True),
        (V2.format("/user.slice"), (), True),
        (V2.format("/user.slice"), ("user.slice",), False),
        (V2.format(SERVICE), ("system.slice",), False),
        (V2.format(SERVICE), ("user.slice",), True),
        (V2.format("/"), ("",), False),  # the root of a container's namespace is no root
        (V2.format("/../other"), ("",), True),  # what is not seen here proves nothing
        ("nonsense\n", (), True),
    ],
)
def test_a_process_in_a_cpu_cgroup_is_in_no_autogroup(
    kernel: Path, cgroups: str, weighed: tuple[str, ...], found: bool
) -> None:
    weigh(kernel / "CGROUPS", *weighed)
    (kernel / "OWN_CGROUPS").write_text(cgroups)
    assert in_autogroup() is found
    (kernel / "ENABLED").write_text("0\n")
    assert not in_autogroup()


@pytest.mark.parametrize(("weighed", "found"), [((), True), (("system.slice",), False)])
def test_version_2_may_be_mounted_beside_version_1(
    kernel: Path, weighed: tuple[str, ...], found: bool
) -> None:
    weigh(kernel / "CGROUPS" / "unified", *weighed)
    (kernel / "OWN_CGROUPS").write_text(HYBRID.format(SERVICE))
    assert in_autogroup() is found


def test_one_share_beside_version_1_is_in_the_tree_that_has_cpu(kernel: Path) -> None:
    tree = kernel / "CGROUPS" / "unified"
    weigh(tree)
    (tree / "cgroup.subtree_control").write_text("cpu\n")
    (kernel / "OWN_CGROUPS").write_text(HYBRID.format("/"))
    with one_share() as shared:
        assert shared
        assert (tree / "moonmesh" / "cgroup.procs").exists()


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
