from moonmesh.v1 import pull_pb2 as _pull_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("envelope_json", "patterns", "engine")
    ENVELOPE_JSON_FIELD_NUMBER: _ClassVar[int]
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    envelope_json: str
    patterns: _containers.RepeatedScalarFieldContainer[str]
    engine: int
    def __init__(self, envelope_json: _Optional[str] = ..., patterns: _Optional[_Iterable[str]] = ..., engine: _Optional[int] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("group", "fingerprint", "federated", "reason", "limits", "memory", "full")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FEDERATED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    group: str
    fingerprint: bytes
    federated: bool
    reason: str
    limits: RequestLimits
    memory: int
    full: bool
    def __init__(self, group: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., federated: bool = ..., reason: _Optional[str] = ..., limits: _Optional[_Union[RequestLimits, _Mapping]] = ..., memory: _Optional[int] = ..., full: bool = ...) -> None: ...

class RequestLimits(_message.Message):
    __slots__ = ("keys", "reports", "key_bytes", "block_bytes", "message_bytes")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    keys: int
    reports: int
    key_bytes: int
    block_bytes: int
    message_bytes: int
    def __init__(self, keys: _Optional[int] = ..., reports: _Optional[int] = ..., key_bytes: _Optional[int] = ..., block_bytes: _Optional[int] = ..., message_bytes: _Optional[int] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ("key", "size", "digest", "chain_position", "name")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHAIN_POSITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    digest: bytes
    chain_position: int
    name: int
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ..., chain_position: _Optional[int] = ..., name: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("fingerprint", "written")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    written: _containers.RepeatedCompositeFieldContainer[Written]
    def __init__(self, fingerprint: _Optional[bytes] = ..., written: _Optional[_Iterable[_Union[Written, _Mapping]]] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExistsRequest(_message.Message):
    __slots__ = ("fingerprint", "keys", "wait_ms", "pull_class")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PULL_CLASS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    pull_class: _pull_pb2.PullClass
    def __init__(self, fingerprint: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ..., wait_ms: _Optional[int] = ..., pull_class: _Optional[_Union[_pull_pb2.PullClass, str]] = ...) -> None: ...

class ExistsReply(_message.Message):
    __slots__ = ("landed",)
    LANDED_FIELD_NUMBER: _ClassVar[int]
    landed: bytes
    def __init__(self, landed: _Optional[bytes] = ...) -> None: ...

class EnginePullRequest(_message.Message):
    __slots__ = ("fingerprint", "keys", "max_sizes", "pull_class", "memory", "before")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZES_FIELD_NUMBER: _ClassVar[int]
    PULL_CLASS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    max_sizes: _containers.RepeatedScalarFieldContainer[int]
    pull_class: _pull_pb2.PullClass
    memory: int
    before: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ..., max_sizes: _Optional[_Iterable[int]] = ..., pull_class: _Optional[_Union[_pull_pb2.PullClass, str]] = ..., memory: _Optional[int] = ..., before: _Optional[str] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("fingerprint", "keys")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fingerprint: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class LocateReply(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Located]
    def __init__(self, groups: _Optional[_Iterable[_Union[Located, _Mapping]]] = ...) -> None: ...

class Located(_message.Message):
    __slots__ = ("group", "own", "blocks", "bytes", "bytes_estimated", "age_ms", "pull_ms", "usable", "reason", "compute_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PULL_MS_FIELD_NUMBER: _ClassVar[int]
    USABLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    own: bool
    blocks: int
    bytes: int
    bytes_estimated: bool
    age_ms: float
    pull_ms: float
    usable: bool
    reason: str
    compute_ms: float
    def __init__(self, group: _Optional[str] = ..., own: bool = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_estimated: bool = ..., age_ms: _Optional[float] = ..., pull_ms: _Optional[float] = ..., usable: bool = ..., reason: _Optional[str] = ..., compute_ms: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status_json",)
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    status_json: str
    def __init__(self, status_json: _Optional[str] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("origin", "epoch", "force", "seconds")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    epoch: int
    force: bool
    seconds: int
    def __init__(self, origin: _Optional[str] = ..., epoch: _Optional[int] = ..., force: bool = ..., seconds: _Optional[int] = ...) -> None: ...

class PurgeReply(_message.Message):
    __slots__ = ("removed", "left", "origins")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    removed: int
    left: int
    origins: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[int] = ..., left: _Optional[int] = ..., origins: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleasePeerRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class ReleasePeerReply(_message.Message):
    __slots__ = ("known", "reason", "peers")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    known: bool
    reason: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, known: bool = ..., reason: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class NamespacesQuestion(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NamespacesAnswer(_message.Message):
    __slots__ = ("namespaces_json",)
    NAMESPACES_JSON_FIELD_NUMBER: _ClassVar[int]
    namespaces_json: str
    def __init__(self, namespaces_json: _Optional[str] = ...) -> None: ...

class OrdersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OrdersReply(_message.Message):
    __slots__ = ("problem",)
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    problem: str
    def __init__(self, problem: _Optional[str] = ...) -> None: ...

class NewPoolRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NewPoolReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...
