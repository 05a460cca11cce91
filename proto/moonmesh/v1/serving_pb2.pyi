from moonmesh.v1 import peer_pb2 as _peer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToServing(_message.Message):
    __slots__ = ("snapshot_begin", "blocks", "snapshot_end", "greeting", "verdict", "ping", "setup", "orders")
    SNAPSHOT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    GREETING_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    snapshot_begin: SnapshotBegin
    blocks: OfferedBlocks
    snapshot_end: SnapshotEnd
    greeting: _peer_pb2.HelloReply
    verdict: Verdict
    ping: Ping
    setup: Setup
    orders: Orders
    def __init__(self, snapshot_begin: _Optional[_Union[SnapshotBegin, _Mapping]] = ..., blocks: _Optional[_Union[OfferedBlocks, _Mapping]] = ..., snapshot_end: _Optional[_Union[SnapshotEnd, _Mapping]] = ..., greeting: _Optional[_Union[_peer_pb2.HelloReply, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., setup: _Optional[_Union[Setup, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ...) -> None: ...

class Setup(_message.Message):
    __slots__ = ("group_json", "federation", "tls", "callers", "worker")
    GROUP_JSON_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    CALLERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    group_json: str
    federation: str
    tls: ServerTls
    callers: _containers.RepeatedCompositeFieldContainer[Caller]
    worker: int
    def __init__(self, group_json: _Optional[str] = ..., federation: _Optional[str] = ..., tls: _Optional[_Union[ServerTls, _Mapping]] = ..., callers: _Optional[_Iterable[_Union[Caller, _Mapping]]] = ..., worker: _Optional[int] = ...) -> None: ...

class ServerTls(_message.Message):
    __slots__ = ("name", "ca_pem", "cert_pem", "key_pem", "not_after")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    CERT_PEM_FIELD_NUMBER: _ClassVar[int]
    KEY_PEM_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    ca_pem: bytes
    cert_pem: bytes
    key_pem: bytes
    not_after: float
    def __init__(self, name: _Optional[str] = ..., ca_pem: _Optional[bytes] = ..., cert_pem: _Optional[bytes] = ..., key_pem: _Optional[bytes] = ..., not_after: _Optional[float] = ...) -> None: ...

class Caller(_message.Message):
    __slots__ = ("name", "keys", "exported", "imported")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    exported: _containers.RepeatedScalarFieldContainer[bytes]
    imported: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., exported: _Optional[_Iterable[bytes]] = ..., imported: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class SnapshotBegin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OfferedBlocks(_message.Message):
    __slots__ = ("fingerprint", "offered", "withdrawn", "through")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    offered: _containers.RepeatedCompositeFieldContainer[OfferedBlock]
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    through: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., offered: _Optional[_Iterable[_Union[OfferedBlock, _Mapping]]] = ..., withdrawn: _Optional[_Iterable[int]] = ..., through: _Optional[int] = ...) -> None: ...

class OfferedBlock(_message.Message):
    __slots__ = ("name", "size", "digest", "rival", "origin", "epoch", "hops", "since")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RIVAL_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    name: int
    size: int
    digest: bytes
    rival: bytes
    origin: str
    epoch: int
    hops: int
    since: float
    def __init__(self, name: _Optional[int] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ..., rival: _Optional[bytes] = ..., origin: _Optional[str] = ..., epoch: _Optional[int] = ..., hops: _Optional[int] = ..., since: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("peer", "believed", "boot_nonce", "newest")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BELIEVED_FIELD_NUMBER: _ClassVar[int]
    BOOT_NONCE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    peer: str
    believed: bool
    boot_nonce: bytes
    newest: _peer_pb2.SignedStatement
    def __init__(self, peer: _Optional[str] = ..., believed: bool = ..., boot_nonce: _Optional[bytes] = ..., newest: _Optional[_Union[_peer_pb2.SignedStatement, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("n", "report", "details")
    N_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    n: int
    report: bool
    details: bool
    def __init__(self, n: _Optional[int] = ..., report: bool = ..., details: bool = ...) -> None: ...

class FromServing(_message.Message):
    __slots__ = ("pong", "listening", "failed", "heard", "disbelieved", "gone", "lost")
    PONG_FIELD_NUMBER: _ClassVar[int]
    LISTENING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    DISBELIEVED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    pong: Pong
    listening: Listening
    failed: Failed
    heard: Heard
    disbelieved: Disbelieved
    gone: Gone
    lost: Lost
    def __init__(self, pong: _Optional[_Union[Pong, _Mapping]] = ..., listening: _Optional[_Union[Listening, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., disbelieved: _Optional[_Union[Disbelieved, _Mapping]] = ..., gone: _Optional[_Union[Gone, _Mapping]] = ..., lost: _Optional[_Union[Lost, _Mapping]] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("n", "report")
    N_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    n: int
    report: ServingReport
    def __init__(self, n: _Optional[int] = ..., report: _Optional[_Union[ServingReport, _Mapping]] = ...) -> None: ...

class Listening(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failed(_message.Message):
    __slots__ = ("code", "what", "where", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    what: str
    where: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., what: _Optional[str] = ..., where: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("hellos",)
    HELLOS_FIELD_NUMBER: _ClassVar[int]
    hellos: _containers.RepeatedCompositeFieldContainer[HeardHello]
    def __init__(self, hellos: _Optional[_Iterable[_Union[HeardHello, _Mapping]]] = ...) -> None: ...

class HeardHello(_message.Message):
    __slots__ = ("peer", "hello")
    PEER_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    peer: str
    hello: bytes
    def __init__(self, peer: _Optional[str] = ..., hello: _Optional[bytes] = ...) -> None: ...

class Disbelieved(_message.Message):
    __slots__ = ("peer", "reason", "detail", "count")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    peer: str
    reason: str
    detail: str
    count: int
    def __init__(self, peer: _Optional[str] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Gone(_message.Message):
    __slots__ = ("fingerprint", "blocks")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[GoneBlock]
    def __init__(self, fingerprint: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[GoneBlock, _Mapping]]] = ...) -> None: ...

class GoneBlock(_message.Message):
    __slots__ = ("name", "since", "changed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    name: int
    since: float
    changed: bool
    def __init__(self, name: _Optional[int] = ..., since: _Optional[float] = ..., changed: bool = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServingReport(_message.Message):
    __slots__ = ("counters", "refused", "store_well", "details_json", "pulls")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STORE_WELL_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedEntry]
    store_well: bool
    details_json: str
    pulls: int
    def __init__(self, counters: _Optional[_Mapping[str, int]] = ..., refused: _Optional[_Iterable[_Union[RefusedEntry, _Mapping]]] = ..., store_well: bool = ..., details_json: _Optional[str] = ..., pulls: _Optional[int] = ...) -> None: ...

class RefusedEntry(_message.Message):
    __slots__ = ("who", "reason", "count", "last_at")
    WHO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_FIELD_NUMBER: _ClassVar[int]
    who: str
    reason: str
    count: int
    last_at: float
    def __init__(self, who: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ..., last_at: _Optional[float] = ...) -> None: ...
