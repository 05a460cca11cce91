"""How Mooncake's programs are started, and what is said where something is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from local_group.config import GroupConfig
from local_group.mooncake import (
    MooncakePrograms,
    libraries_error,
    master_command,
    missing_libraries,
    store_command,
)
from local_group.process_errors import MissingPackage

LDD = """\
\tlinux-vdso.so.1 (0x00007fc6f6a8b000)
\tlibibverbs.so.1 => not found
\tlibnuma.so.1 => not found
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fc6f421e000)
"""
LOADER = (
    "/x/mooncake/mooncake_master: error while loading shared libraries: librdmacm.so.1: "
    "cannot open shared object file: No such file or directory\n"
)


def config(tmp_path: Path, **values: object) -> GroupConfig:
    return GroupConfig.model_validate(
        {
            "name": "east",
            "data_dir": tmp_path,
            "port_base": 7400,
            "stores": {"count": 2, "dram": 33554433},
            **values,
        }
    )


def test_missing_libraries_from_ldd_and_from_the_loader() -> None:
    assert missing_libraries(LDD) == ["libibverbs.so.1", "libnuma.so.1"]
    assert missing_libraries(LOADER) == ["librdmacm.so.1"]
    assert missing_libraries("all is well, nothing => /lib/x") == []


def test_the_sentence_names_libraries_and_packages() -> None:
    error = libraries_error("mooncake_master", ["libibverbs.so.1", "libnuma.so.1"])
    assert str(error) == (
        "mooncake_master cannot start: the shared libraries libibverbs.so.1, libnuma.so.1 are not "
        "installed\n  apt-get install libibverbs1 ibverbs-providers libnuma1"
    )
    assert error.code == "MM209"


def test_a_library_that_we_do_not_know() -> None:
    error = libraries_error("store-0", ["libodd.so.3"])
    assert "the shared library libodd.so.3 is not installed" in error.what
    assert error.hint == "find the packages that bring libodd.so.3 (apt-file search)"


def test_a_program_that_lacks_a_library_is_found_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ldd = tmp_path / "ldd"
    ldd.write_text(f"#!/bin/sh\ncat <<'END'\n{LDD}END\n")
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        MissingPackage, match=r"libibverbs\.so\.1, libnuma\.so\.1 are not installed"
    ):
        MooncakePrograms.find()


def test_the_installed_programs_are_found() -> None:
    programs = MooncakePrograms.find()
    assert programs.master.name == "mooncake_master"
    assert programs.client.is_file()


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match="Mooncake is not installed in this Python"):
        MooncakePrograms.find()


def test_a_program_missing_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    with pytest.raises(MissingPackage, match="program is missing") as caught:
        MooncakePrograms.find()
    assert str(tmp_path / "mooncake_master") in str(caught.value)


def test_a_program_without_its_executable_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mooncake_master", "mooncake_client"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o644)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    programs = MooncakePrograms.find()
    assert programs.master.stat().st_mode & 0o111 == 0o111


def test_command_lines(tmp_path: Path) -> None:
    programs = MooncakePrograms(Path("/m"), Path("/c"))
    group = config(tmp_path, host="127.0.0.2", master={"lease_ttl_ms": 500})
    assert master_command(programs, group) == (
        "/m",
        "--rpc_address=127.0.0.2",
        "--rpc_port=7400",
        "--metrics_host=127.0.0.2",
        "--metrics_port=7401",
        "--default_kv_lease_ttl=500",
        "--enable_metric_reporting=false",
    )
    assert store_command(programs, group, 1) == (
        "/c",
        "--host=127.0.0.2",
        "--port=7411",
        "--global_segment_size=33554433",
        "--master_server_address=127.0.0.2:7400",
        "--metadata_server=P2PHANDSHAKE",
        "--protocol=tcp",
    )
