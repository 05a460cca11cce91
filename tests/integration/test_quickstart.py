"""The program in docs/quickstart.md does what the page says, on the groups that the page starts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.groups import (
    REPOSITORY,
    RunningGroup,
    environment,
    free_port_base,
    moonmesh,
)

pytestmark = pytest.mark.real

PAGE = (REPOSITORY / "docs" / "quickstart.md").read_text("utf-8")
EXAMPLE = REPOSITORY / "deploy" / "two-datacenters"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    bases = {"74": free_port_base(), "75": free_port_base()}

    def moved(text: str) -> str:
        """The text with free ports in the place of 7400, 7402, 7500, 7502."""
        return re.sub(
            r"\b(74|75)(0[0-9])\b", lambda found: str(bases[found[1]] + int(found[2])), text
        )

    for name in ("east", "west"):
        shutil.copytree(EXAMPLE / name, tmp_path / "mesh" / name)
        for path in (tmp_path / "mesh" / name).glob("*.toml"):
            path.write_text(moved(path.read_text("utf-8")))
    made = moonmesh("peer", "init", tmp_path / "mesh")
    assert made.returncode == 0, made.stderr
    (program,) = blocks("python")
    (tmp_path / "reuse.py").write_text(moved(program))
    with ThreadPoolExecutor() as starts, ExitStack() as stack:
        groups = [
            RunningGroup(tmp_path / "mesh" / name / "group.toml") for name in ("east", "west")
        ]
        stack.callback(lambda: list(starts.map(RunningGroup.down, groups)))
        list(starts.map(RunningGroup.up, groups))
        ran = subprocess.run(
            [sys.executable, "reuse.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        shown = moonmesh("trace", "show", tmp_path / "mesh" / "east", tmp_path / "mesh" / "west")
    assert ran.returncode == 0, ran.stderr
    (said,) = [block for block in blocks("console") if block.startswith("$ python reuse.py")]
    wrote, read, again = ran.stdout.splitlines()
    assert "peer" in read
    # If west heard of the four blocks in two parts, it has the first of them locally by now.
    assert [wrote, read.replace("local", "peer"), again] == said.splitlines()[1:]
    assert "through west, east" in shown.stdout, shown.stdout + shown.stderr
    for span in re.findall(r"── ([a-z]+\.[a-z]+)", PAGE):
        assert span in shown.stdout
