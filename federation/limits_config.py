"""`[limits]` of `group.toml`: all bounds of a gateway that an operator may set."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from local_group.config import GIB, KIB, MIB, parse_size
from local_group.ledger import FOREIGN_BLOCKS

SERVING_OWN_BYTES = 192 * MIB
"""What a serving process uses without any block (measured: 140 MiB)."""
SERVING_BYTES_PER_BLOCK = 100
"""What it uses for each block, at most while its catalog is being merged or a snapshot comes."""

CONTROL_BYTES_LEAST = 512 * KIB
"""A control message that every group takes: the longest hello, and a page of `PAGE_ENTRIES_MAX`. Groups do
not tell each other their bounds: whatever one may be set to send, any other has to take."""
PAGE_ENTRIES_MAX = 100_000
"""Of a catalog, five bytes each at most."""

_LEASE_MS_MAX = 3_600_000


def _count(low: int, high: int) -> Any:
    return Field(ge=low, le=high)


_Bytes = BeforeValidator(parse_size)


class Limits(BaseModel):
    """Bounds of one gateway. Sizes are bytes (or text such as "64 MiB"), times are ms."""

    # Defaults are checked as well: what one bound leaves of another is seldom the other's default.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    # Requests
    engine_request_keys_max: Annotated[int, _count(1, 65_536)] = 4096
    """Keys in one request of an engine. A million-token prompt at 256 tokens a block."""
    peer_request_keys_max: Annotated[int, _count(1, 65_536)] = 4096
    """Keys in one request of a peer: what one check at the owner's master costs (10k: 28 ms)."""
    engines_max: Annotated[int, _count(1, 16_384)] = 1024
    """Engines that are attached at once. One more is told so, works with its own group alone, and asks again
    every 10 s. An endpoint takes twice as many connections, of whoever; more are closed at once. Each takes
    25 KB, and a descriptor."""
    engine_requests_open: Annotated[int, _count(64, 65_536)] = 4096
    """Calls of engines, routers and commands open at once at an endpoint; one more is refused. Of a pull by
    an engine on another host a message or two (`message_bytes`) are in memory."""
    key_bytes_max: Annotated[int, _count(64, 8192)] = 1024
    """Bytes of one key. Engines' keys have 60 to 300; a longer one is refused with its request."""
    block_bytes_max: Annotated[int, _Bytes, _count(4 * KIB, GIB)] = 64 * MIB
    """Bytes of one block. It is held whole in staging and in the owner's buffer."""
    message_bytes: Annotated[int, _Bytes, _count(64 * KIB, 4 * MIB)] = MIB
    """Bytes of one message of a bulk stream. Measured: 1 MiB is the fastest over gRPC."""
    control_message_bytes_max: Annotated[int, _Bytes, _count(CONTROL_BYTES_LEAST, 16 * MIB)] = MIB
    """Bytes of a control message; a larger one is refused before it is parsed."""

    # Memory and its use
    staging_bytes: Annotated[int, _Bytes, _count(16 * MIB, 1024 * GIB)] = 256 * MIB
    """Bytes of staging, where pulled blocks land: shared memory, which engines of the host read. What was
    used once stays with the gateway. Two blocks at least. Full: what does not fit is a miss."""
    staging_hold_ms: Annotated[int, _count(100, _LEASE_MS_MAX)] = 10_000
    """ms for which a landed block is held: at least `master.lease_ttl_ms`, since engines are told that
    it exists."""
    bounce_bytes: Annotated[int, _Bytes, _count(16 * MIB, 64 * GIB)] = 128 * MIB
    """Bytes of the gateway's bounce buffers: memory of its own for Mooncake calls with a deadline, so
    that an overdue call touches nobody else's. One block at least."""
    admission_queue_blocks: Annotated[int, _count(1, 1_000_000)] = 4096
    """Blocks that have landed and wait to be put into the local Mooncake; more are not admitted, and a
    later miss pulls them again."""
    foreign_percent: Annotated[int, _count(1, 100)] = 25
    """Percent of the pool that copies of peers' blocks may take, of those that this gateway knows of. What is
    more is given back, what was of no use for longest and the tails of chains first, and nothing more is
    admitted meanwhile. Each copy pushes out a block that perhaps only this group has."""
    report_batch_max: Annotated[int, _count(1, 65_536)] = 4096
    """Blocks in one report of what an engine wrote; a larger report is refused."""

    # Pulls and serves
    pulls_per_peer: Annotated[int, _count(1, 256)] = 8
    """Streams open to one peer. Enough to fill a link, few enough to leave others room."""
    channels_per_peer: Annotated[int, _count(1, 16)] = 4
    """Connections for blocks to each gateway of a peer at most, and from each process that pulls: one for
    each serving process that the peer has. Pulls are spread over them."""
    pulls_waiting_per_peer: Annotated[int, _count(1, 65_536)] = 256
    """Pulls from one peer that run or wait for one of `pulls_per_peer`; what comes after is a miss at
    once, for its engine's deadline would pass in the queue."""
    serves_per_peer: Annotated[int, _count(1, 256)] = 8
    """Streams open from one peer; one more is refused, not queued."""
    serve_window_bytes: Annotated[int, _Bytes, _count(64 * KIB, GIB)] = 8 * MIB
    """Bytes that one serve copies from Mooncake at a time: what a lease has to cover."""
    pull_timeout_ms: Annotated[int, _count(10, 600_000)] = 10_000
    """ms after which a pull ends whatever its caller's deadline was: nothing waits for ever."""
    background_pull_ms: Annotated[int, _count(10, 600_000)] = 5_000
    """ms that a pull goes on without a waiting engine, so that the next ask finds the blocks."""

    # Catalogs and holdings
    catalog_wait_ms: Annotated[int, _count(10, 60_000)] = 10_000
    """ms for which the owner holds a catalog request that has nothing new (a long poll)."""
    catalog_linger_ms: Annotated[int, _count(0, 10_000)] = 50
    """ms for which changes are gathered before they are sent: fewer, fuller messages."""
    catalog_page_entries: Annotated[int, _count(16, PAGE_ENTRIES_MAX)] = 65_536
    """Entries in one page of a catalog; 2 bytes each in a snapshot, 5 at most."""
    views_bytes: Annotated[int, _Bytes, _count(MIB, 1024 * GIB)] = GIB
    """Bytes of memory for what all peers are believed to hold, 8 for each block: 134 million blocks. Each
    peer has a fair share; what one does not need is for the others. Above: a view is cut, pulls miss."""
    holdings_blocks: Annotated[int, _count(1000, 100_000_000)] = 4_000_000
    """Blocks of this group that are tracked. Above: the rest is not offered to peers. Each takes 40 bytes of
    memory in the gateway, and 50 in the process that serves peers."""
    foreign_blocks: Annotated[int, _count(1024, 100_000_000)] = FOREIGN_BLOCKS
    """Blocks pulled that stay known as a peer's although they are not (or no longer) in the pool, at most;
    half as many at least. An older one that an engine writes back is taken for its own. 40 bytes each."""
    log_entries: Annotated[int, _count(1024, 262_144)] = 262_144
    """Changes in a holdings log. A peer that is further behind takes a new snapshot."""
    listing_interval_ms: Annotated[int, _count(100, 3_600_000)] = 30_000
    """ms between key listings of the master, which take evicted blocks out of the holdings and find what
    nobody reported. At least 59 times what the last one took (ten minutes at most, if it failed)."""
    listing_soonest_ms: Annotated[int, _count(100, 3_600_000)] = 1_000
    """ms between two listings at least: one is made before its time when serves find most blocks gone, as
    after a restart of the master, so that peers are told at once."""
    listing_bytes_max: Annotated[int, _Bytes, _count(MIB, 16 * GIB)] = 256 * MIB
    """Bytes of one key listing: 3 million keys of 88 bytes. A longer one is not used, and evicted blocks are
    offered until peers have asked for them in vain."""
    journal_bytes_max: Annotated[int, _Bytes, _count(MIB, 1024 * GIB)] = GIB
    """Bytes on disk of the provenance journal. Full: nothing more is admitted."""

    # The serving process
    serving_memory: Annotated[int, _Bytes, _count(256 * MIB, 1024 * GIB)] = 4 * GIB
    """Bytes of memory in use by the process that serves peers; above, it is killed and started again. It
    needs 192 MiB, its own `bounce_bytes`, and 100 a block of `holdings_blocks`; the rest is what peers
    can make it use."""
    serving_descriptors: Annotated[int, _count(256, 1_048_576)] = 1024
    """Descriptors (files and connections) open in that process: two connections of each gateway of a peer (of
    each of its processes that pull), 8 to each store, 40 of its own. What is left is no reservation:
    connections of strangers, who only connect, count as well and can use all of it up. Peers then cannot
    connect anew until some of those end; engines, and pulls of our own, go on."""
    serving_nice: Annotated[int, _count(0, 19)] = 5
    """Steps of niceness of that process: where CPU is short, 5 leave it a third of what the gateway
    gets."""
    serving_silence_ms: Annotated[int, _count(500, 600_000)] = 2_000
    """ms without an answer to its gateway, pinged every 250, after which it is killed and started
    again. Longer than anything it does in one go."""

    shed_windows: Annotated[int, _count(1, 1024)] = 32
    """Calls that read a window for peers, at once and for all of them together, while the group's own
    Mooncake is as fast as usual. Fewer as soon as it is slower, so that engines do not notice: see
    docs/limits.md."""
    shed_windows_min_percent: Annotated[int, _count(1, 100)] = 10
    """Percent of one window: what is left of it at the least. So much of the time one is read."""
    shed_slow_percent: Annotated[int, _count(150, 10_000)] = 300
    """Percent of what a question to Mooncake usually takes: above it is slow ..."""
    shed_slow_ms: Annotated[int, _count(1, 10_000)] = 10
    """ms more than that it has to take, too, to be slow."""

    # Peers
    hop_limit: Annotated[int, _count(1, 1)] = 1
    """Groups that a block may cross. 1: what was pulled is not offered onward."""
    hello_interval_ms: Annotated[int, _count(50, 60_000)] = 1_000
    """ms between hellos to each peer. A peer is suspect after 3 to 6 of them without news, down after 12, so
    a shorter one notices sooner and costs more."""
    interest_minutes: Annotated[int, _count(1, 10_080)] = 30
    """Minutes after its last use for which a namespace stays subscribed at peers: what nobody here uses
    costs nothing."""
    peer_breaker_failures: Annotated[int, _count(1, 1000)] = 5
    """Failures among the last `peer_breaker_window` pulls that open a peer's breaker: then nothing is
    pulled from it for a while."""
    peer_breaker_window: Annotated[int, _count(1, 1000)] = 20
    """Pulls that a breaker looks back on (`peer_breaker_failures`, if that is more): few enough that what is
    long over does not count."""
    peer_breaker_within_ms: Annotated[int, _count(100, 3_600_000)] = 30_000
    """ms after which a failure no longer counts: failures further apart are no outage."""
    peer_breaker_open_ms: Annotated[int, _count(10, 600_000)] = 1_000
    """ms for which a breaker first stays open; doubled with each probe that fails, up to
    `peer_breaker_open_max_ms`."""
    peer_breaker_open_max_ms: Annotated[int, _count(10, 3_600_000)] = 10_000
    """ms for which a breaker stays open at most (`peer_breaker_open_ms`, if that is more): how long a peer
    that is well again may be left out."""

    peer_redial_ms: Annotated[int, _count(20, 60_000)] = 100
    """ms after which a connection to a peer that was refused or lost is tried again; longer after each
    that fails, up to `peer_redial_max_ms`."""
    peer_redial_max_ms: Annotated[int, _count(20, 600_000)] = 500
    """ms between two such tries, at most: how long a peer that is back may go unnoticed. A try that is
    refused costs a packet each way."""
    peer_connect_ms: Annotated[int, _count(100, 60_000)] = 2_000
    """ms that one try may take, TLS included: several round trips, and one packet lost on the way."""
    peer_connection_ms: Annotated[int, _count(1000, 86_400_000)] = 600_000
    """ms after which a connection from a peer is closed, less or more 10 %, and the peer makes another: the
    end of calls whose peer never reads, which hold its places and which nothing else can end."""
    peer_handshake_ms: Annotated[int, _count(100, 120_000)] = 10_000
    """ms that somebody who connects has until the connection is made, TLS included, and one who is connected
    to answer a ping, sent every 10 s; then it is closed. A stranger who says nothing holds a descriptor for
    so long."""
    peer_idle_ms: Annotated[int, _count(1000, 86_400_000)] = 300_000
    """ms without a call after which a connection from a peer is closed; the peer makes another when it
    needs one. Far above `hello_interval_ms`."""
    peer_unheard_ms: Annotated[int, _count(500, 600_000)] = 2_000
    """ms for which nothing that was sent is acknowledged, after which a connection is given up and made
    anew. TCP alone would take as long again to notice that a line works as it was cut."""

    # Guards, per peer and direction: docs/limits.md
    peer_requests_open: Annotated[int, _count(8, 65_536)] = 1024
    """Calls of all kinds open to one peer, and from one: a long poll for each of 256 namespaces, twice,
    and the streams, with room to spare."""
    peer_requests_arriving: Annotated[int, _count(1, 65_536)] = 64
    """Calls of one peer whose request is on its way: a message of a megabyte takes a moment, many at once.
    What is more is refused."""
    peer_requests_refused: Annotated[int, _count(1, 65_536)] = 64
    """Calls of one peer that are being refused, for which the server keeps places: that takes no time to
    speak of."""
    peer_hello_streams: Annotated[int, _count(1, 256)] = 8
    """Streams of hellos open from one peer: one from each of its gateways that speaks, and some whose end has
    not been noticed yet. With one more the oldest is ended."""
    peer_catalogs_per_namespace: Annotated[int, _count(1, 64)] = 2
    """Calls for a catalog open to one peer, and from one, in one namespace: the one that waits, and one
    after a reconnect."""
    peer_burst_ms: Annotated[int, _count(10, 60_000)] = 1_000
    """ms of a rate below that may come at once. Longer is kinder to peers that are busy by fits and starts,
    shorter to everybody beside them."""
    peer_requests_per_s: Annotated[int, _count(1, 1_000_000)] = 2000
    """Requests a second (pulls and catalog questions) to one peer, and from one. About what one core can
    answer."""
    peer_hellos_per_s: Annotated[int, _count(1, 10_000)] = 50
    """Hellos a second from one peer, and to one: the most that `hello_interval_ms` allows is 20, twice that
    while a peer's leader changes, and a signature is checked for each. One that goes to several gateways of
    a peer is one. With one more its stream is ended."""
    peer_bytes_per_s: Annotated[int, _Bytes, _count(4 * MIB, 1024 * GIB)] = GIB
    """Bytes of blocks a second from one peer, and to one. A stream that is faster is slowed down. Set it
    to the share of your line that a peer may have."""
    peer_catalog_bytes_per_s: Annotated[int, _Bytes, _count(MIB, GIB)] = 32 * MIB
    """Bytes of catalogs a second to one peer, and from one: a snapshot of 16 million blocks. Making one takes
    a core a tenth of a second, and is done once for all who ask at about the same time."""
    peer_catalog_bytes: Annotated[int, _Bytes, _count(MIB, 16 * GIB)] = 64 * MIB
    """Bytes of catalog answers under way from one peer: a snapshot of 30 million blocks. Of a larger catalog
    as much is read; what takes more bytes for its blocks than a catalog needs is cut off."""
    peer_shared_percent: Annotated[int, _count(0, 90)] = 50
    """Percent of staging, and of the bounce buffers, for whichever peer comes first. The rest is split
    evenly and kept for each: no peer can take the room of another."""
    peer_window_wait_ms: Annotated[int, _count(0, 60_000)] = 1_000
    """ms for which a serve waits for bounce buffers before its peer is told to come back later: what others
    read is sent, and its memory free, in less."""
    peer_leased_percent: Annotated[int, _count(1, 100)] = 2
    """Percent of the pool that reads for one peer may hold under lease, and so keep from eviction."""
    peer_leased_bytes_min: Annotated[int, _Bytes, _count(MIB, 1024 * GIB)] = 64 * MIB
    """Bytes that reads for one peer may hold under lease in a pool whose `peer_leased_percent` is less;
    at most an eighth of the pool."""
    peer_retry_percent: Annotated[int, _count(0, 100)] = 10
    """Percent of the pulls from a peer that may be retries of what another did not send; beyond it the
    engine computes. Else one peer's outage is the next one's flood."""
    peer_retries_few: Annotated[int, _count(1, 10_000)] = 20
    """Retries that may be made in any case, so that a quiet peer can be a second choice."""
    peer_retry_after_max_ms: Annotated[int, _count(100, 3_600_000)] = 10_000
    """ms for which a peer that has no room can have us leave it alone: it must not be able to say "for
    ever"."""
    peer_slow_ms: Annotated[int, _count(10, 600_000)] = 2_000
    """ms after which a pull that ended well is looked at: below `peer_slow_bytes_per_s` it counts as
    a failure."""
    peer_slow_bytes_per_s: Annotated[int, _Bytes, _count(KIB, GIB)] = 64 * KIB
    """Bytes a second below which a long pull is of no use: engines compute faster than that."""
    peer_stall_ms: Annotated[int, _count(50, 600_000)] = 3_000
    """ms for which nothing may move on a stream of blocks, either way. An owner whose own Mooncake hangs
    needs up to 2 s to say so."""
    peer_silence_ms: Annotated[int, _count(20, 60_000)] = 300
    """ms without a byte of any answer of a peer, after which a pull whose caller's deadline has passed is
    held against it. Each pull is listened to for this long: a caller with less time than the peer needs
    says nothing of the peer. Above the round trip and the owner's read."""
    peer_dishonest_percent: Annotated[int, _count(1, 100)] = 50
    """Percent of the blocks that a catalog promised and the owner did not have, over the last
    `peer_honesty_pulls`, above which each such pull counts as a failure. Eviction makes honest catalogs wrong
    by a few."""
    peer_honesty_pulls: Annotated[int, _count(1, 4096)] = 32
    """Pulls over which promises are compared with what was there."""
    peer_honesty_blocks_min: Annotated[int, _count(1, 65_536)] = 32
    """Blocks promised that it takes to call a peer dishonest: one evicted chain is none. With more than
    `peer_honesty_pulls`, pulls of one block each are never enough."""
    peer_doubt_ms: Annotated[int, _count(0, 60_000)] = 2_000
    """ms for which such misses are excused when they first become so many: an owner that has lost its
    blocks at once needs a moment to list what is left. 0: they never are."""
    peer_doubt_every_ms: Annotated[int, _count(0, 3_600_000)] = 60_000
    """ms after which they may be excused again: who lies gets a moment in a minute, not for ever."""

    @field_validator("staging_bytes")
    @classmethod
    def _hold_two_blocks(cls, value: int, info: ValidationInfo) -> int:
        block = info.data.get("block_bytes_max")
        if block is not None and value < 2 * block:
            raise ValueError(
                f"{value} bytes hold fewer than two blocks of block_bytes_max ({block}): raise it, "
                "or lower block_bytes_max"
            )
        return value

    @field_validator("bounce_bytes")
    @classmethod
    def _bounce_a_block(cls, value: int, info: ValidationInfo) -> int:
        block = info.data.get("block_bytes_max")
        if block is not None and value < block:
            raise ValueError(
                f"{value} bytes cannot hold one block of block_bytes_max ({block}): raise it, "
                "or lower block_bytes_max"
            )
        return value

    @field_validator("serving_memory")
    @classmethod
    def _serve_what_is_held(cls, value: int, info: ValidationInfo) -> int:
        bounce, blocks = info.data.get("bounce_bytes"), info.data.get("holdings_blocks")
        if bounce is None or blocks is None:
            return value
        needed = SERVING_OWN_BYTES + bounce + SERVING_BYTES_PER_BLOCK * blocks
        if value < needed:
            raise ValueError(
                f"{value} bytes are less than the serving process needs for bounce_bytes "
                f"({bounce}) and holdings_blocks ({blocks}): at least {needed}, or lower those"
            )
        return value
