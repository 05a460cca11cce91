"""Errors of a group's processes; each has a stable code."""

from __future__ import annotations

from local_group.errors import MoonmeshError


class GroupError(MoonmeshError):
    """A group cannot be started, stopped or inspected as asked."""

    code = "MM201"


class AlreadyRunning(GroupError):  # noqa: N818 - the name says what is, as FileExistsError does not
    """`up` on a group that runs."""

    code = "MM202"


class PortInUse(GroupError):  # noqa: N818
    """A port that the group needs is taken."""

    code = "MM203"


class MissingPackage(GroupError):  # noqa: N818
    """Mooncake, or a shared library that its programs need, is not installed."""

    code = "MM209"


class ChildDied(GroupError):  # noqa: N818
    """A process of the group ended while the group was starting."""

    code = "MM205"


class NotReady(GroupError):  # noqa: N818
    """A process of the group did not become ready in time."""

    code = "MM206"


class AdminError(MoonmeshError):
    """The master's admin HTTP did not answer, or not as expected."""

    code = "MM207"


class CoordinationError(MoonmeshError):
    """The coordination of a group cannot be used: its durable epoch, its configuration."""

    code = "MM208"


class CoordinationGone(CoordinationError):  # noqa: N818
    """The coordination of a group does not answer in time."""

    code = "MM213"


class Fenced(CoordinationError):  # noqa: N818
    """A leader whose term is over wanted to write."""

    code = "MM214"
