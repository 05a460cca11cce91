"""Which gateway of a peer is asked: a table of what became of each, and whom that makes the next."""

from __future__ import annotations

import pytest

from federation.peers.choice import HANGS_FOR_S, Choice, Word

SILENT_FOR = 2.0


def choice(*happened: tuple[str, int, float] | tuple[str, float], count: int = 2) -> Choice:
    made = Choice(count, SILENT_FOR)
    for what, *arguments in happened:
        getattr(made, what)(*arguments)
    return made


@pytest.mark.parametrize(
    ("happened", "catalog", "pull"),
    [
        pytest.param([], [0, 1], [0, 1], id="nothing is known: in the order of the file"),
        pytest.param([("spoke", 1, 1)], [1, 0], [1, 0], id="who speaks is asked"),
        pytest.param([("silent", 0, 9)], [1], [1, 0], id="who is silent serves pulls, no catalog"),
        pytest.param(
            [("silent", 0, 7), ("silent", 1, 8)],
            [0, 1],
            [0, 1],
            id="asked again, oldest word first",
        ),
        pytest.param([("silent", 0, 9), ("silent", 1, 9)], [], [0, 1], id="all are silent"),
        pytest.param(
            [("spoke", 0, 1), ("spoke", 1, 9)],
            [0, 1],
            [0, 1],
            id="if two claim it, the first stays",
        ),
        pytest.param(
            [("spoke", 0, 1), ("silent", 0, 9), ("spoke", 1, 9)], [1], [1, 0], id="another term"
        ),
        pytest.param(
            [("spoke", 0, 1), ("failed", 0, 2), ("silent", 1, 9)],
            [0],
            [1, 0],
            id="who led is gone: pulls go to who follows, and its catalog is still its own",
        ),
        pytest.param(
            [("spoke", 0, 1), ("failed", 0, 2), ("spoke", 1, 3), ("spoke", 0, 4)],
            [1, 0],
            [1, 0],
            id="who is back does not take it from who speaks meanwhile",
        ),
        pytest.param(
            [("failed", 1, 3), ("failed", 0, 4)], [1, 0], [1, 0], id="the oldest failure first"
        ),
        pytest.param(
            [("spoke", 0, 1), ("doubt", 2)], [1, 0], [1, 0], id="another term: who spoke comes last"
        ),
        pytest.param(
            [("spoke", 0, 1), ("silent", 1, 9), ("doubt", 9), ("silent", 1, 9)],
            [0],
            [0, 1],
            id="the other one is as silent as before",
        ),
        pytest.param(
            [("failed", 0, 1), ("spoke", 1, 1), ("doubt", 2)],
            [1, 0],
            [1, 0],
            id="a doubt does not raise the dead",
        ),
    ],
)
def test_whom_to_ask(
    happened: list[tuple[str, int, float]], catalog: list[int], pull: list[int]
) -> None:
    made = choice(*happened)
    assert made.for_catalog(10.0) == catalog
    assert made.for_pull(10.0) == pull


def test_one_gateway_alone_is_asked_whatever_became_of_it() -> None:
    for what in ("spoke", "silent", "failed"):
        alone = choice((what, 0, 1.0), count=1)
        assert alone.for_pull(1.0 + SILENT_FOR) == alone.for_catalog(1.0 + SILENT_FOR) == [0]
    assert choice(("silent", 0, 1.0), count=1).for_catalog(1.0 + SILENT_FOR / 2) == []


def test_the_speaker_and_the_words_of_status() -> None:
    made = choice(("spoke", 2, 1), ("silent", 0, 1), ("failed", 1, 1), count=4)
    assert made.speaker == 2
    words = [made.word(place).value for place in range(4)]
    assert words == ["follows", "unreachable", "leads", "unknown"]
    made.failed(2, 2.0)
    assert made.speaker is None
    made.spoke(0, 3.0)
    assert (made.speaker, made.word(0)) == (0, Word.SPEAKS)
    made.doubt(4.0)
    assert made.speaker is None


def test_that_nobody_of_it_leads_is_known_once_all_that_answer_say_so() -> None:
    choice = Choice(2, silent_for=2.0)
    assert not choice.leaderless
    choice.silent(0, 1.0)
    assert not choice.leaderless, "the other one may speak"
    choice.failed(1, 1.0)
    assert choice.leaderless
    choice.spoke(1, 2.0)
    assert not choice.leaderless
    choice.failed(0, 3.0)
    choice.failed(1, 3.0)
    assert not choice.leaderless, "nobody is there at all"


def test_one_whose_pulls_hang_comes_last_for_a_while_whatever_it_says() -> None:
    choice = Choice(2, silent_for=2.0)
    choice.spoke(0, 0.0)
    choice.silent(1, 0.0)
    choice.hung(0, 1.0)
    choice.failed(0, 1.0)
    choice.spoke(0, 1.1)
    assert choice.for_pull(1.2) == [1, 0]
    assert choice.for_catalog(1.2)[0] == 0, "its catalog is as good as before"
    assert choice.for_pull(1.0 + HANGS_FOR_S) == [0, 1]
