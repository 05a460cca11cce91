"""The system's tools that make network namespaces, and whether they do here."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from chaos.errors import ChaosError
from chaos.network import rules
from chaos.network.base import Fault
from federation.timeouts import timeout
from local_group.child import own_group

NAMED = Path("/run/netns")
"""Where `ip netns` keeps namespaces."""
PREFIX = "mm-"
SBIN = "/usr/sbin:/sbin"
"""Where the tools are, which the PATH of root need not have."""
TOOL_S = 10.0
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "iptables-restore": "iptables"}
"""Each tool, and the Debian and Ubuntu package that brings it."""
TRIAL = """
ip link add place1 type veth peer name eth0 && ip tuntap add dev delay mode tun &&
  tc qdisc add dev place1 root handle 1: htb &&
  tc class add dev place1 parent 1: classid 1:1 htb rate 1mbit &&
  tc qdisc add dev place1 parent 1:1 handle 2: bfifo limit 1kb &&
  tc filter add dev place1 parent 1: protocol ip prio 1 u32 match ip src 10.71.1.2/32 flowid 1:1 &&
  ip rule add iif place1 from 10.71.1.2 lookup 100 && iptables-restore
"""


def environment() -> dict[str, str]:
    """This process's, with the tools on its PATH."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:{SBIN}"}


def inside(namespace: str) -> list[str]:
    """What runs a command in a namespace. It is replaced by the command, which has its process id."""
    program = shutil.which("ip", path=environment()["PATH"]) or "ip"
    return [program, "netns", "exec", namespace]


def why_not() -> tuple[str, str] | None:
    """Why there can be no network namespaces here, and what to do about it; None if there can.

    Makes what a run makes, in a namespace without a name that ends with the trial.
    """
    if os.geteuid() != 0:
        return "network namespaces need root", "run it with sudo, or with --network loopback"
    path = environment()["PATH"]
    missing = [tool for tool in PACKAGES if shutil.which(tool, path=path) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[tool] for tool in missing}))
        return (
            f"network namespaces need {', '.join(missing)}, which {_be(missing)} not installed",
            f"apt-get install {packages}",
        )
    faults = {
        rules.Way(1, 2): Fault("cut"),
        rules.Way(2, 1): Fault("reset"),
        rules.Way(1, 3): Fault("loss", share=0.1),
    }
    try:
        tried = subprocess.run(
            ["unshare", "--net", "--mount", "sh", "-c", TRIAL],
            input=rules.filters(faults),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TOOL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"network namespaces cannot be made here: {error}", "use --network loopback"
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or ["no word why"])[-1]
        return f"network namespaces cannot be made here: {last}", "use --network loopback"
    return None


def _be(missing: Sequence[str]) -> str:
    return "is" if len(missing) == 1 else "are"


async def call(*command: str, text: str = "") -> None:
    """Runs a tool, with `text` as its stdin.

    Raises:
        ChaosError: it failed; with its last words.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        **own_group(),
    )
    try:
        async with timeout(TOOL_S):
            _, said = await process.communicate(text.encode())
    except asyncio.TimeoutError:
        raise ChaosError(f"{' '.join(command)} took more than {TOOL_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = said.decode(errors="replace").strip() or f"exit code {process.returncode}"
        raise ChaosError(f"{' '.join(command)}: {words}")


def named_of(run: str) -> list[str]:
    """Names of the network namespaces that there are of a run."""
    return sorted(path.name for path in NAMED.glob(f"{PREFIX}{run}-*"))


def remove(names: Iterable[str]) -> list[str]:
    """Removes network namespaces, with every device and rule in them; those that could not be.

    Processes that run in one keep it, without its name: end them first.
    """
    left = []
    for name in names:
        if (NAMED / name).exists():
            try:
                subprocess.run(
                    ["ip", "netns", "delete", name],
                    env=environment(),
                    check=True,
                    capture_output=True,
                    timeout=TOOL_S,
                )
            except (OSError, subprocess.SubprocessError):
                left.append(name)
    return left
