"""Mooncake's own programs: where they are, how they are started, what they lack.

What stays open: the master and a store's service port are bound to `host`, but each
`mooncake_client` (and each engine's client) also listens for handshakes and data on two ports of
EVERY address of the machine, picked at random from 15000 to 17000, whatever `host`,
`MC_TCP_BIND_ADDRESS` or `MC_RDMA_BIND_ADDRESS` say (measured with 0.3.13.post1). Nothing in Mooncake
authenticates, so a firewall has to keep those ports from other hosts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_group.config import GroupConfig
from local_group.process_errors import MissingPackage

METADATA_SERVER = "P2PHANDSHAKE"
"""Clients exchange segment descriptors among themselves: no metadata server to run."""

_DEBIAN_PACKAGES = {
    "libibverbs.so.1": "libibverbs1 ibverbs-providers",
    "librdmacm.so.1": "librdmacm1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
}
_LDD_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_LOADER_MISSING = re.compile(r"error while loading shared libraries: (\S+): cannot open")
_LDD_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MooncakePrograms:
    """Paths of the programs in the installed `mooncake` package."""

    master: Path
    client: Path

    @classmethod
    def find(cls) -> MooncakePrograms:
        """The installed programs, executable and with all their libraries.

        Raises:
            MissingPackage: the package, a program or a shared library is missing.
        """
        spec = importlib.util.find_spec("mooncake")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if not folders:
            raise MissingPackage(
                "Mooncake is not installed in this Python",
                hint="pip install mooncake-transfer-engine-non-cuda",
            )
        programs = cls(Path(folders[0], "mooncake_master"), Path(folders[0], "mooncake_client"))
        for program in (programs.master, programs.client):
            _make_executable(program)
            _check_libraries(program)
        return programs


def missing_libraries(text: str) -> list[str]:
    """Shared libraries that `ldd`'s output, or the loader's message in a log, says are missing."""
    return sorted({*_LDD_MISSING.findall(text), *_LOADER_MISSING.findall(text)})


def libraries_error(program: str, libraries: list[str]) -> MissingPackage:
    """One sentence that names the libraries and the Debian packages that bring them."""
    packages = sorted({_DEBIAN_PACKAGES[name] for name in libraries if name in _DEBIAN_PACKAGES})
    unknown = [name for name in libraries if name not in _DEBIAN_PACKAGES]
    hints = []
    if packages:
        hints.append(f"apt-get install {' '.join(packages)}")
    if unknown:
        hints.append(f"find the packages that bring {', '.join(unknown)} (apt-file search)")
    word = "library" if len(libraries) == 1 else "libraries"
    return MissingPackage(
        f"{program} cannot start: the shared {word} {', '.join(libraries)} "
        f"{'is' if len(libraries) == 1 else 'are'} not installed",
        hint="; ".join(hints),
    )


def master_command(programs: MooncakePrograms, config: GroupConfig) -> tuple[str, ...]:
    """The command line of the master: the binary itself, so that our child IS the master."""
    return (
        str(programs.master),
        f"--rpc_address={config.host}",
        f"--rpc_port={config.ports.master_rpc}",
        f"--metrics_host={config.host}",
        f"--metrics_port={config.ports.master_admin}",
        f"--default_kv_lease_ttl={config.master.lease_ttl_ms}",
        # A 2 kB line every few seconds says nothing that /metrics does not.
        "--enable_metric_reporting=false",
    )


def store_command(programs: MooncakePrograms, config: GroupConfig, index: int) -> tuple[str, ...]:
    """The command line of store `index`."""
    return (
        str(programs.client),
        f"--host={config.host}",
        f"--port={config.ports.store(index)}",
        # A bare number is taken as bytes, exactly; Mooncake's "MB" means MiB and it has no "MiB".
        f"--global_segment_size={config.stores.dram}",
        f"--master_server_address={config.master_address}",
        f"--metadata_server={METADATA_SERVER}",
        f"--protocol={config.protocol}",
    )


def mooncake_environment(config: GroupConfig) -> Mapping[str, str]:
    """What Mooncake's programs get beside the environment of `up`."""
    # In spite of its name: the address that a store tells others to reach it at.
    return {"MC_TCP_BIND_ADDRESS": config.host}


def _make_executable(program: Path) -> None:
    """pip drops the executable bit of some wheels' programs."""
    if not program.is_file():
        raise MissingPackage(
            "Mooncake's program is missing",
            where=str(program),
            hint="pip install --force-reinstall mooncake-transfer-engine-non-cuda",
        )
    if os.access(program, os.X_OK):
        return
    try:
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError as error:
        raise MissingPackage(
            f"Mooncake's program cannot be made executable: {error.strerror}",
            where=str(program),
            hint=f"chmod +x {program}",
        ) from error


def _check_libraries(program: Path) -> None:
    ldd = shutil.which("ldd")
    if ldd is None:  # then the loader's message is found in the child's log
        return
    try:
        result = subprocess.run(
            [ldd, str(program)], capture_output=True, text=True, timeout=_LDD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    missing = missing_libraries(result.stdout)
    if missing:
        raise libraries_error(program.name, missing)
