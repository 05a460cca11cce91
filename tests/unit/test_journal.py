"""The journal: what is appended is read again, whatever a crash cut off."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_group.journal import FILE_NAME, Entry, Journal, JournalError, encode
from local_group.names import NAME_MAX, name_of

entries = st.builds(
    Entry,
    fingerprint=st.binary(min_size=16, max_size=16),
    name=st.integers(0, NAME_MAX),
    size=st.integers(1, 1 << 40),
    digest=st.binary(min_size=16, max_size=16),
    origin=st.text(max_size=30),
    epoch=st.integers(0, 1 << 60),
    hops=st.integers(0, 9),
)
ONE = Entry(b"f" * 16, 7, 5, b"d" * 16, "west", 3, 1)


def opened(tmp_path: Path, bytes_max: int = 1 << 20) -> Journal:
    journal = Journal(tmp_path, bytes_max)
    journal.rewrite(list(journal.load()))
    return journal


@settings(max_examples=50, deadline=None)
@given(st.lists(entries, max_size=8))
def test_what_is_appended_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Entry]
) -> None:
    tmp_path = tmp_path_factory.mktemp("journal")
    journal = opened(tmp_path)
    journal.append(wanted, durable=True)
    journal.close()
    assert list(Journal(tmp_path, 1 << 20).load()) == wanted


def test_a_record_cut_at_any_byte_ends_the_replay_before_it(tmp_path: Path) -> None:
    first, second = encode(ONE), encode(ONE._replace(name=8))
    for cut in range(len(second)):
        (tmp_path / FILE_NAME).write_bytes(first + second[:cut])
        assert list(Journal(tmp_path, 1 << 20).load()) == [ONE]


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    data = bytearray(encode(ONE) * 2)
    data[len(data) - 1] ^= 1
    (tmp_path / FILE_NAME).write_bytes(data)
    assert list(Journal(tmp_path, 1 << 20).load()) == [ONE]


def test_appending_after_a_torn_record_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(encode(ONE)[:-3])
    journal = opened(tmp_path)
    journal.append([ONE], durable=False)
    journal.close()
    assert list(Journal(tmp_path, 1 << 20).load()) == [ONE]


def test_at_the_limit_nothing_is_appended_until_it_is_rewritten(tmp_path: Path) -> None:
    size = len(encode(ONE))
    journal = opened(tmp_path, bytes_max=2 * size)
    journal.append([ONE, ONE], durable=False)
    assert not journal.has_room([ONE])
    with pytest.raises(JournalError, match="limit"):
        journal.append([ONE], durable=False)
    journal.rewrite([ONE])
    journal.append([ONE], durable=False)
    journal.close()


def test_the_file_is_private(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


def test_a_journal_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(JournalError, match="cannot read the journal"):
        list(Journal(tmp_path, 1 << 20).load())


def test_a_journal_of_the_first_version_is_read(tmp_path: Path) -> None:
    origin, key = b"west", "k\N{SNOWMAN}".encode()
    head = struct.pack("<BQHQBH16s16s", 1, 5, 1, 3, len(origin), len(key), b"f" * 16, b"d" * 16)
    body = head + origin + key
    record = struct.pack("<II", len(body), zlib.crc32(body)) + body
    (tmp_path / FILE_NAME).write_bytes(record + encode(ONE))
    journal = Journal(tmp_path, 1 << 20)
    name = name_of(b"f" * 16, "k\N{SNOWMAN}")
    assert list(journal.load()) == [ONE._replace(name=name), ONE]
    assert not journal.lost


def test_whether_something_was_lost_is_known(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1 << 20)
    assert list(journal.load()) == []
    assert journal.lost, "there was no journal"
    whole = encode(ONE) * 2
    for content, lost in ((whole, False), (whole[:-1], False), (whole[:-1] + b"x", True)):
        (tmp_path / FILE_NAME).write_bytes(content)
        assert ONE in list(journal.load())
        assert journal.lost is lost
