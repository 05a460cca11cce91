"""Staging shared by peers: what a peer holds of it is what its blocks and reservations take up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from federation.limits.bulkhead import Shares
from federation.transfer.staging import StagedBlock, Staging

FP = b"f" * 16
PEERS = ("east", "west")


def block(key: str, size: int, origin: str, now: float) -> StagedBlock:
    return StagedBlock(FP, key, memoryview(bytearray(size)), b"d" * 16, origin, 1, now, now)


def test_what_is_dropped_is_free_for_its_peer_again() -> None:
    shares = Shares(100, PEERS, 50)
    staging = Staging(bytes_max=100, hold=5.0, shares=shares)
    assert staging.reserve(75, 0.0, "east")
    assert not staging.reserve(1, 0.0, "east"), "what is left is the part of west"
    staging.land(block("a", 70, "east", 0.0), reserved=75)
    assert shares.used("east") == 70
    assert staging.reserve(25, 0.0, "west")
    staging.release(25, "west")
    assert staging.reserve(75, 5.0, "east"), "the old block makes room"
    assert shares.used("east") == 75
    staging.release(75, "east")
    assert (shares.used("east"), shares.used("west")) == (0, 0)


def test_the_same_block_of_another_peer_moves_the_room_to_it() -> None:
    shares = Shares(100, PEERS, 50)
    staging = Staging(bytes_max=100, hold=5.0, shares=shares)
    for origin in PEERS:
        assert staging.reserve(10, 0.0, origin)
        staging.land(block("a", 10, origin, 0.0), reserved=10)
    assert (shares.used("east"), shares.used("west")) == (0, 10)


@given(
    st.lists(
        st.tuples(st.sampled_from(PEERS), st.integers(1, 60), st.integers(0, 5), st.floats(0, 3)),
        max_size=40,
    )
)
def test_the_books_of_staging_and_shares_agree(steps: list[tuple[str, int, int, float]]) -> None:
    shares, now = Shares(100, PEERS, 50), 0.0
    staging = Staging(bytes_max=100, hold=4.0, shares=shares)
    for origin, size, key, step in steps:
        now += step
        if staging.reserve(size, now, origin):
            if key == 5:
                staging.release(size, origin)
            else:
                staging.land(block(f"k{key}", (size + 1) // 2, origin, now), reserved=size)
        held = Counter[str]()
        for staged in staging._blocks.values():
            held[staged.origin] += len(staged.data)
        for peer in PEERS:
            assert shares.used(peer) == held[peer]
            if held[peer] < shares.part:
                assert shares.fits(peer, shares.part - held[peer])
    staging.expire(now + 4.1)
    assert (staging.bytes, staging.reserved) == (0, 0)
    assert [shares.used(peer) for peer in PEERS] == [0, 0]
