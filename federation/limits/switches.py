"""Guards switched off by name, so that a test can show what each is for. Never in production."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from federation.errors import ConfigError
from federation.limits.names import GuardName

VARIABLE = "MOONMESH_TEST_GUARDS_OFF"
PERMIT = "MOONMESH_TEST"


def guards_off(environment: Mapping[str, str]) -> frozenset[GuardName]:
    """The guards that `MOONMESH_TEST_GUARDS_OFF=breaker,digest` switches off.

    Raises:
        ConfigError: a name that is no guard's, or the variable is set outside of a test: a gateway that
            was told to run unguarded must not start as if it had not been.
    """
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return frozenset()
    if environment.get(PERMIT) != "1":
        raise ConfigError(
            f"{VARIABLE} switches guards off and is for tests alone",
            where="environment",
            hint=f"unset {VARIABLE}; a test sets {PERMIT}=1 as well",
        )
    off: set[GuardName] = set()
    known = [guard.value for guard in GuardName]
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError(
                f"{VARIABLE} names a guard that is not there: {name[:60]!r}",
                where="environment",
                hint=f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}",
            )
        off.add(GuardName(name))
    return frozenset(off)
