from moonmesh.v1 import pull_pb2 as _pull_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Statement(_message.Message):
    __slots__ = ("version", "federation", "group", "epoch", "seq", "boot_nonce", "wall_time_ms", "health", "not_heard_from", "not_heard_more", "load", "limits")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BOOT_NONCE_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    NOT_HEARD_FROM_FIELD_NUMBER: _ClassVar[int]
    NOT_HEARD_MORE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    version: int
    federation: str
    group: str
    epoch: int
    seq: int
    boot_nonce: bytes
    wall_time_ms: int
    health: Health
    not_heard_from: _containers.RepeatedScalarFieldContainer[str]
    not_heard_more: int
    load: Load
    limits: Limits
    def __init__(self, version: _Optional[int] = ..., federation: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., boot_nonce: _Optional[bytes] = ..., wall_time_ms: _Optional[int] = ..., health: _Optional[_Union[Health, _Mapping]] = ..., not_heard_from: _Optional[_Iterable[str]] = ..., not_heard_more: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("pulls", "bytes_per_second")
    PULLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    pulls: int
    bytes_per_second: int
    def __init__(self, pulls: _Optional[int] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("bytes_per_second", "streams")
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    streams: int
    def __init__(self, bytes_per_second: _Optional[int] = ..., streams: _Optional[int] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("state", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Health.State]
        OK: _ClassVar[Health.State]
        DEGRADED: _ClassVar[Health.State]
        DRAINING: _ClassVar[Health.State]
    STATE_UNSPECIFIED: Health.State
    OK: Health.State
    DEGRADED: Health.State
    DRAINING: Health.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: Health.State
    reason: str
    def __init__(self, state: _Optional[_Union[Health.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class SignedStatement(_message.Message):
    __slots__ = ("body", "signature")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class VersionEntry(_message.Message):
    __slots__ = ("group", "epoch", "seq", "mark")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    seq: int
    mark: int
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., mark: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("log_id", "n")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    log_id: bytes
    n: int
    def __init__(self, log_id: _Optional[bytes] = ..., n: _Optional[int] = ...) -> None: ...

class NamespacePosition(_message.Message):
    __slots__ = ("fingerprint", "position", "blocks")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    position: Position
    blocks: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., blocks: _Optional[int] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("group", "epoch", "seq")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    seq: int
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("statement", "versions", "positions", "have_epoch", "have_seq", "want_versions", "relayed", "probes", "silent", "yours", "answer")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    HAVE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HAVE_SEQ_FIELD_NUMBER: _ClassVar[int]
    WANT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    YOURS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    statement: SignedStatement
    versions: _containers.RepeatedCompositeFieldContainer[VersionEntry]
    positions: _containers.RepeatedCompositeFieldContainer[NamespacePosition]
    have_epoch: int
    have_seq: int
    want_versions: bool
    relayed: _containers.RepeatedCompositeFieldContainer[SignedStatement]
    probes: _containers.RepeatedCompositeFieldContainer[Probe]
    silent: _containers.RepeatedCompositeFieldContainer[Probe]
    yours: SignedStatement
    answer: bool
    def __init__(self, statement: _Optional[_Union[SignedStatement, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[VersionEntry, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[NamespacePosition, _Mapping]]] = ..., have_epoch: _Optional[int] = ..., have_seq: _Optional[int] = ..., want_versions: bool = ..., relayed: _Optional[_Iterable[_Union[SignedStatement, _Mapping]]] = ..., probes: _Optional[_Iterable[_Union[Probe, _Mapping]]] = ..., silent: _Optional[_Iterable[_Union[Probe, _Mapping]]] = ..., yours: _Optional[_Union[SignedStatement, _Mapping]] = ..., answer: bool = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("statement", "positions", "silent", "yours", "refuses")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    YOURS_FIELD_NUMBER: _ClassVar[int]
    REFUSES_FIELD_NUMBER: _ClassVar[int]
    statement: SignedStatement
    positions: _containers.RepeatedCompositeFieldContainer[NamespacePosition]
    silent: bool
    yours: SignedStatement
    refuses: str
    def __init__(self, statement: _Optional[_Union[SignedStatement, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[NamespacePosition, _Mapping]]] = ..., silent: bool = ..., yours: _Optional[_Union[SignedStatement, _Mapping]] = ..., refuses: _Optional[str] = ...) -> None: ...

class CatalogRequest(_message.Message):
    __slots__ = ("fingerprint", "after", "wait_ms", "unattested")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    UNATTESTED_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    after: Position
    wait_ms: int
    unattested: bool
    def __init__(self, fingerprint: _Optional[bytes] = ..., after: _Optional[_Union[Position, _Mapping]] = ..., wait_ms: _Optional[int] = ..., unattested: bool = ...) -> None: ...

class CatalogPage(_message.Message):
    __slots__ = ("position", "snapshot", "last", "form", "bits", "blocks", "removed", "added")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    position: Position
    snapshot: bool
    last: bool
    form: int
    bits: int
    blocks: int
    removed: Prints
    added: Prints
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., snapshot: bool = ..., last: bool = ..., form: _Optional[int] = ..., bits: _Optional[int] = ..., blocks: _Optional[int] = ..., removed: _Optional[_Union[Prints, _Mapping]] = ..., added: _Optional[_Union[Prints, _Mapping]] = ...) -> None: ...

class Prints(_message.Message):
    __slots__ = ("base", "width", "gaps")
    BASE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    base: int
    width: int
    gaps: bytes
    def __init__(self, base: _Optional[int] = ..., width: _Optional[int] = ..., gaps: _Optional[bytes] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("fingerprint", "keys", "max_sizes", "unattested", "pull_class", "credit")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZES_FIELD_NUMBER: _ClassVar[int]
    UNATTESTED_FIELD_NUMBER: _ClassVar[int]
    PULL_CLASS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    max_sizes: _containers.RepeatedScalarFieldContainer[int]
    unattested: bool
    pull_class: _pull_pb2.PullClass
    credit: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ..., max_sizes: _Optional[_Iterable[int]] = ..., unattested: bool = ..., pull_class: _Optional[_Union[_pull_pb2.PullClass, str]] = ..., credit: _Optional[int] = ...) -> None: ...

class PullMore(_message.Message):
    __slots__ = ("credit", "all")
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    credit: int
    all: bool
    def __init__(self, credit: _Optional[int] = ..., all: bool = ...) -> None: ...

class NamespacesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NamespacesReply(_message.Message):
    __slots__ = ("namespaces",)
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[ToldNamespace]
    def __init__(self, namespaces: _Optional[_Iterable[_Union[ToldNamespace, _Mapping]]] = ...) -> None: ...

class ToldNamespace(_message.Message):
    __slots__ = ("name", "fingerprint", "envelope_json", "exported", "imported", "unattested")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_JSON_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    UNATTESTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: bytes
    envelope_json: str
    exported: bool
    imported: bool
    unattested: bool
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., envelope_json: _Optional[str] = ..., exported: bool = ..., imported: bool = ..., unattested: bool = ...) -> None: ...
