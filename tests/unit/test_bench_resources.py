from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from federation.bench import resources
from federation.bench.engines import BenchError
from federation.bench.replay import Options
from federation.bench.resources import check_memory, free_port_base, kernel_ports
from federation.bench.workload import Request, Workload
from federation.errors import UsageError
from local_group.config import MOONCAKE_PORTS

GIB = 1 << 30


@pytest.fixture
def held() -> Iterator[int]:
    """A port that is taken."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_in_use_is_stepped_over(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "kernel_ports", lambda: range(0))
    base = held - 111  # store 1 of the second group
    found = free_port_base(2, base)
    assert found > base
    assert (found - base) % 100 == 0


def test_ports_above_those_of_mooncake_can_be_asked_for() -> None:
    assert 20_000 <= free_port_base(2, 20_000) < kernel_ports().start


@pytest.mark.parametrize("start", [12_250, 12_300, 16_990])
def test_mooncakes_own_ports_are_left_to_it(start: int) -> None:
    assert free_port_base(2, start) >= MOONCAKE_PORTS.stop


def test_the_kernels_own_ports_are_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    file.write_text("20000\t64000\n")
    monkeypatch.setattr(resources, "KERNEL_RANGE", file)
    assert free_port_base(2, 19_900) > 64_000
    file.unlink()
    assert kernel_ports() == range(0)


def test_too_many_groups_for_any_port_base_are_told_what_to_do() -> None:
    with pytest.raises(BenchError, match="no free ports for 700 groups") as caught:
        free_port_base(700, 8000)
    assert "--port-base" in caught.value.hint
    assert "12300-17000" in caught.value.hint


def a_workload(chain: int, block_bytes: int) -> Workload:
    keys = tuple(map(str, range(chain)))
    return Workload((Request(0, None, 0, keys),), 2, block_bytes)


def test_what_fits_into_memory_is_let_through() -> None:
    check_memory(a_workload(30, 8192), 32 << 20, Options())


def test_stores_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=4 * GIB))
    check_memory(a_workload(30, 8192), 3 * GIB, Options())
    with pytest.raises(UsageError, match=r"needs 4\.1 GiB .* 4\.0 GiB are available"):
        check_memory(a_workload(30, 8192), 4 * GIB, Options())


def test_engines_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="more than"):  # of one engine alone
        check_memory(a_workload(40, 8 << 20), 0, Options())
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=4 * GIB))
    with pytest.raises(UsageError, match="in engines"):
        check_memory(a_workload(30, 8 << 20), 0, Options())
