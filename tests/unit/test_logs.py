"""Logs of a group's processes are kept small, and quoted where they say why."""

from __future__ import annotations

from pathlib import Path

from local_group.logs import how_it_ended, log_size, log_tail, own_error, rotate, truncate


def test_logs_are_rotated_at_start_and_cut_while_running(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"
    rotate(log, 10)  # makes the folder
    log.write_text("x" * 10)
    rotate(log, 10)
    assert log.exists()
    log.write_text("x" * 11)
    rotate(log, 10)
    assert not log.exists()
    assert log.with_suffix(".log.1").read_text() == "x" * 11
    with log.open("ab", buffering=0) as writer:
        writer.write(b"0123456789abc")
        truncate(log, 10)
        assert log.with_suffix(".log.1").read_text() == "3456789abc"
        writer.write(b"next")
    assert log.read_text() == "next"
    truncate(tmp_path / "none.log", 10)


def test_log_tail_and_endings(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert log_tail(log) == ""
    log.write_bytes(b"\xff" + "\n".join(f"line {i}" for i in range(5000)).encode())
    assert log_tail(log, 2) == "line 4998\nline 4999"
    size = log_size(log)
    with log.open("a") as file:
        file.write("\nerror MM301: x\n" + "".join(f"  {i}\n" for i in range(10)) + "more")
    assert log_tail(log, 2).splitlines()[:2] == ["error MM301: x", "  0"]
    assert log_tail(log, 2).splitlines()[-2:] == ["  9", "more"]
    assert own_error(log_tail(log, 2)) == "; ".join(["error MM301: x", *map(str, range(10))])
    assert log_tail(log, 100, since=size).splitlines()[1] == "error MM301: x"
    assert log_tail(log, 1, since=log_size(log)) == ""
    assert own_error("no error") == ""
    assert how_it_ended(0) == "exited with code 0"
    assert how_it_ended(-15) == "was killed by SIGTERM"
    assert how_it_ended(-99) == "was killed by signal 99"
