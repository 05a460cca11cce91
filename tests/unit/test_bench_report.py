from __future__ import annotations

import io
import json
import math
import os
import stat
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from federation.bench.report import Report, Target, check_writable, show, write_whole
from federation.errors import UsageError


@pytest.mark.parametrize(
    ("value", "op", "target", "met"),
    [
        (0, "==", 0, True),
        (1, "==", 0, False),
        (0.97, ">=", 0.97, True),
        (0.9699, ">=", 0.97, False),
        (5.0, "<=", 5, True),
        (5.1, "<", 5, False),
        (5.1, ">", 5, True),
        (None, ">=", 1, None),
        (math.nan, ">=", 1, None),
    ],
)
def test_a_target_is_met_missed_or_has_no_value(
    value: float | None, op: str, target: float, met: bool | None
) -> None:
    found = Target("t", value, op, target)  # type: ignore[arg-type]
    assert found.met is met
    assert found.as_dict()["met"] is met


def a_report() -> Report:
    return Report(
        "replay",
        figures={
            "requests": 2000,
            "hit_rate": 0.2871,
            "isolated_hit_rate": None,
            "ratio": math.nan,
            "modes": {"federated": {"get_ms": 1.5, "only": 3}, "isolated": {"get_ms": 12345.6}},
            "setup": {"trace": "x", "seed": 0},
        },
        targets=[
            Target("wrong_bytes", 0, "==", 0, "B"),
            Target("ratio", 0.5, ">=", 0.97),
            Target("other", None, ">=", 1),
        ],
        notes=["How it was measured."],
        command="moonmesh bench replay",
    )


def test_the_json_has_the_form_of_every_bench(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    a_report().write(path)
    found = json.loads(path.read_text())
    assert found["bench"] == "replay"
    assert found["figures"]["requests"] == 2000
    assert found["figures"]["ratio"] is None
    assert found["targets"][1] == {
        "name": "ratio", "value": 0.5, "op": ">=", "target": 0.97, "unit": "", "met": False,
    }  # fmt: skip
    assert found["interrupted"] is False
    assert found["command"] == "moonmesh bench replay"
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["numpy"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_table_shows_missed_as_missed() -> None:
    out = io.StringIO()
    report = a_report()
    report.interrupted = True
    report.print(Console(file=out, width=120))
    text = out.getvalue()
    assert "interrupted" in text
    for line, verdict in (("wrong_bytes", "met"), ("ratio", "missed"), ("other", "n/a")):
        rows = [row for row in text.splitlines() if line in row and ("==" in row or ">=" in row)]
        assert any(verdict in row for row in rows)
    assert "federated" in text
    assert "How it was measured." in text


def test_an_existing_report_survives_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")
    report = a_report()
    report.figures["bad"] = object()
    with pytest.raises(TypeError):
        report.write(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_where_a_report_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    check_writable(None)
    check_writable(tmp_path / "out.json")
    with pytest.raises(UsageError, match="no such folder"):
        check_writable(tmp_path / "absent" / "out.json")
    with pytest.raises(UsageError, match="cannot be written"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        a_report().write(tmp_path / "absent" / "out.json")
    with pytest.raises(UsageError, match=r"/proc/x\.json: .*cannot be written"):
        check_writable(Path("/proc/x.json"))  # as root, access bits would allow it
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_written_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "out.json"
    link, around = tmp_path / "link.json", tmp_path / "around.json"
    link.symlink_to(target)
    around.symlink_to(around)
    for text in ("new", "replaced"):
        check_writable(link)
        write_whole(text, link)
        assert (target.read_text(), link.is_symlink()) == (text, True)
    assert list(target.parent.iterdir()) == [target]
    for use in (check_writable, lambda path: write_whole("", path)):
        with pytest.raises(UsageError, match="cannot be written"):
            use(around)
        with pytest.raises(UsageError, match="cannot be written"):
            use(target.parent)


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe)
        write_whole("text", pipe)
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_device_is_written_to_and_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**_: object) -> None:
        pytest.fail("a file that could take the place of the device")

    monkeypatch.setattr(tempfile, "mkstemp", made)
    for device in ("/dev/null", "/dev/full"):
        check_writable(Path(device))
    write_whole("text", Path("/dev/null"))
    with pytest.raises(UsageError, match="No space left"):
        write_whole("text", Path("/dev/full"))


def test_our_own_output_has_the_report_after_what_was_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print("a table")
    check_writable(Path("/dev/stdout"))
    write_whole("{}\n", Path("/dev/stdout"))  # here a file
    print("the end")
    assert capfd.readouterr().out == "a table\n{}\nthe end\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (1234567, "1,234,567"),
        (0.28713, "0.2871"),
        (123456.7, "123,457"),
        (True, "yes"),
        ({}, "none"),
        ({"get -800": 3}, "get -800: 3"),
        ("text", "text"),
    ],
)
def test_figures_for_people(value: object, text: str) -> None:
    assert show(value) == text
