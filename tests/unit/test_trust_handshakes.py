"""The record of refusals, and reading them from what gRPC's C core writes to stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from federation.trust.handshakes import (
    EITHER_WAY,
    UNKNOWN_TLS,
    RefusalLog,
    Refused,
    StderrWatch,
    explain_line,
)
from tests.support.wait import wait_for

HEAD = "I1129 17:07:45.912495    5500 ssl_transport_security.cc:2563] Handshake failed with error "
SSL = HEAD + "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
EXPIRED = SSL + "CERTIFICATE_VERIFY_FAILED: certificate has expired"
CUT = EXPIRED.index("failed")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (EXPIRED, "its certificate has expired"),
        (
            HEAD + "SSL_ERROR_SSL: error:1a000064:ECDSA routines:OPENSSL_internal:BAD_SIGNATURE: "
            "certificate signature failure",
            "its certificate is signed by another CA",
        ),
        (
            SSL + "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
            "its certificate is signed by another CA",
        ),
        (
            SSL + "PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verification context",
            "showed no certificate",
        ),
        (SSL + "TLSV1_ALERT_UNKNOWN_CA", "it refused our certificate: signed by another CA than"),
        (SSL + "WRONG_VERSION_NUMBER", "did not speak TLS"),
        (SSL + "SOMETHING_NEW: of a later release", "TLS handshake failed: SOMETHING_NEW: of a"),
    ],
)
def test_lines_of_the_c_core(line: str, reason: str) -> None:
    found = explain_line(line)
    assert found is not None
    assert found[0] == UNKNOWN_TLS
    assert found[1].startswith(reason)


def test_a_wrong_server_name_says_whose() -> None:
    line = "E1129 17:07 5500 ssl_transport_security.cc:3238] No match found for server name: a.b.c"
    assert explain_line(line) == ("a.b.c", "the certificate at its address is for another name")


@pytest.mark.parametrize(
    ("dials", "listens", "refused", "not_connected"),
    [
        (False, True, [UNKNOWN_TLS, "a.b.c"], []),
        (True, False, [], [UNKNOWN_TLS, "a.b.c"]),
        (True, True, [EITHER_WAY], ["a.b.c"]),
    ],
)
def test_what_failed_on_our_own_way_out_is_no_refusal(
    dials: bool, listens: bool, refused: list[str], not_connected: list[str]
) -> None:
    log, dialled = RefusalLog(), RefusalLog()
    watch = StderrWatch(log, dialled=dialled if dials else None, listens=listens)
    watch._look(f"No match found for server name: a.b.c\n{EXPIRED}\n".encode())
    assert [entry.who for entry in log.entries()] == refused
    assert [entry.who for entry in dialled.entries()] == not_connected


@pytest.mark.parametrize("line", ["", "hello", "W1129 handshake went well"])
def test_other_lines_mean_nothing(line: str) -> None:
    assert explain_line(line) is None


def test_the_log_counts_and_forgets_the_oldest() -> None:
    log = RefusalLog(limit=2)
    log.record("west", "expired", 1.0)
    log.record("north", "not a peer", 2.0)
    log.record("west", "expired", 3.0)
    assert log.entries() == [
        Refused("west", "expired", 2, 3.0),
        Refused("north", "not a peer", 1, 2.0),
    ]
    log.record("south", "not a peer", 4.0)
    assert [entry.who for entry in log.entries()] == ["south", "west"]
    assert log.total == 4


def test_refusals_of_one_kind_are_one_entry_whatever_they_say() -> None:
    log = RefusalLog(limit=2)
    log.record("north", "not a peer", 1.0)
    for n in range(10):
        log.refuse("west", f"epoch {n} is not in 1..4", 2.0 + n, kind="beyond_headroom")
    assert log.entries() == [
        Refused("west", "epoch 9 is not in 1..4", 10, 11.0),
        Refused("north", "not a peer", 1, 1.0),
    ]


def test_the_log_is_bounded_in_texts_too() -> None:
    log = RefusalLog(limit=1)
    log.record("w" * 1000, "r" * 1000, 1.0)
    (entry,) = log.entries()
    assert (len(entry.who), len(entry.reason)) == (100, 300)
    with pytest.raises(ValueError, match="limit"):
        RefusalLog(limit=0)


# The watch takes over file descriptor 2, which pytest has taken over too: so it runs in a process
# of its own, that says on stdout what was recorded.
PROGRAM = f"""
import os
from federation.trust.handshakes import RefusalLog, StderrWatch
log = RefusalLog()
os.write(2, b"before\\n")
with StderrWatch(log, clock=lambda: 7.0):
    os.write(2, b"an ordinary line\\n{EXPIRED[:20]}")
    os.write(2, b"{EXPIRED[20:]}\\n{EXPIRED}\\n")
    os.write(2, b"x" * 200_000 + b"\\n{EXPIRED}\\nno newline at the end")
os.write(2, b"\\nafter\\n")
for entry in log.entries():
    print(entry.who, entry.reason, entry.count, entry.last_at, sep="|")
"""
WANTED = (
    "before\nan ordinary line\n"
    + f"{EXPIRED}\n" * 2
    + "x" * 200_000
    + f"\n{EXPIRED}\nno newline at the end\nafter\n"
)


def run(stderr: int) -> str:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'proto'}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        timeout=30,
        check=True,
    )
    if stderr == subprocess.PIPE:
        assert done.stderr.decode() == WANTED
    return done.stdout.decode()


def test_every_byte_of_a_piped_stderr_is_passed_on() -> None:
    assert run(subprocess.PIPE) == f"{UNKNOWN_TLS}|its certificate has expired|3|7.0\n"


def test_a_stderr_that_is_a_file_is_read_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    # What is in the file already is of an earlier run.
    path.write_text(f"{EXPIRED}\n")
    with path.open("ab") as file:
        out = run(file.fileno())
    assert out == f"{UNKNOWN_TLS}|its certificate has expired|3|7.0\n"
    assert path.read_text() == f"{EXPIRED}\n{WANTED}"


def test_lines_are_recorded_while_it_runs(tmp_path: Path) -> None:
    log = RefusalLog()
    saved = os.dup(2)
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(fd, 2)
        watch = StderrWatch(log)
        watch.start()
        with pytest.raises(RuntimeError, match="already"):
            watch.start()
        # A line may come in two pieces, and be looked at in between.
        os.write(2, f"{EXPIRED}\n{EXPIRED[:CUT]}".encode())
        wait_for(lambda: log.total == 1, 5, "the first line")
        os.write(2, f"{EXPIRED[CUT:]}\n".encode())
        wait_for(lambda: log.total == 2, 5, "the second line")
        os.truncate(path, 0)
        os.write(2, b"Handshake failed with error x: certificate has expired\n")
        wait_for(lambda: log.total == 3, 5, "a line after the file was cut short")
        watch.stop()
        watch.stop()
        os.write(2, f"{EXPIRED}\n".encode())
        assert log.total == 3
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(fd)
