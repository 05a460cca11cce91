from moonmesh.v1 import peer_pb2 as _peer_pb2
from moonmesh.v1 import serving_pb2 as _serving_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToPulling(_message.Message):
    __slots__ = ("setup", "ping", "pull", "more", "room", "taken", "stop")
    SETUP_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    setup: PullingSetup
    ping: int
    pull: Pull
    more: More
    room: Room
    taken: int
    stop: int
    def __init__(self, setup: _Optional[_Union[PullingSetup, _Mapping]] = ..., ping: _Optional[int] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., more: _Optional[_Union[More, _Mapping]] = ..., room: _Optional[_Union[Room, _Mapping]] = ..., taken: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class PullingSetup(_message.Message):
    __slots__ = ("limits_json", "federation", "tls")
    LIMITS_JSON_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    limits_json: str
    federation: str
    tls: _serving_pb2.ServerTls
    def __init__(self, limits_json: _Optional[str] = ..., federation: _Optional[str] = ..., tls: _Optional[_Union[_serving_pb2.ServerTls, _Mapping]] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("id", "peer", "address", "request", "timeout", "stall", "more", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    id: int
    peer: str
    address: str
    request: bytes
    timeout: float
    stall: float
    more: bool
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[int] = ..., peer: _Optional[str] = ..., address: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout: _Optional[float] = ..., stall: _Optional[float] = ..., more: bool = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class More(_message.Message):
    __slots__ = ("id", "more")
    ID_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    more: _peer_pb2.PullMore
    def __init__(self, id: _Optional[int] = ..., more: _Optional[_Union[_peer_pb2.PullMore, _Mapping]] = ...) -> None: ...

class Room(_message.Message):
    __slots__ = ("id", "places", "none")
    ID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    id: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    none: bool
    def __init__(self, id: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., none: bool = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("index", "offset", "size")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    size: int
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class FromPulling(_message.Message):
    __slots__ = ("pong", "need", "came", "over")
    PONG_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    CAME_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    pong: int
    need: Need
    came: Came
    over: Over
    def __init__(self, pong: _Optional[int] = ..., need: _Optional[_Union[Need, _Mapping]] = ..., came: _Optional[_Union[Came, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ...) -> None: ...

class Need(_message.Message):
    __slots__ = ("id", "wishes")
    ID_FIELD_NUMBER: _ClassVar[int]
    WISHES_FIELD_NUMBER: _ClassVar[int]
    id: int
    wishes: _containers.RepeatedCompositeFieldContainer[Wish]
    def __init__(self, id: _Optional[int] = ..., wishes: _Optional[_Iterable[_Union[Wish, _Mapping]]] = ...) -> None: ...

class Wish(_message.Message):
    __slots__ = ("index", "size", "ahead")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    index: int
    size: int
    ahead: bool
    def __init__(self, index: _Optional[int] = ..., size: _Optional[int] = ..., ahead: bool = ...) -> None: ...

class Came(_message.Message):
    __slots__ = ("id", "size", "arrivals")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    id: int
    size: int
    arrivals: _containers.RepeatedCompositeFieldContainer[Arrival]
    def __init__(self, id: _Optional[int] = ..., size: _Optional[int] = ..., arrivals: _Optional[_Iterable[_Union[Arrival, _Mapping]]] = ...) -> None: ...

class Arrival(_message.Message):
    __slots__ = ("index", "missing", "digest", "hops", "attested", "good")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_FIELD_NUMBER: _ClassVar[int]
    GOOD_FIELD_NUMBER: _ClassVar[int]
    index: int
    missing: bool
    digest: bytes
    hops: int
    attested: bool
    good: bool
    def __init__(self, index: _Optional[int] = ..., missing: bool = ..., digest: _Optional[bytes] = ..., hops: _Optional[int] = ..., attested: bool = ..., good: bool = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("id", "error", "what", "retry_after", "ended")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: str
    what: str
    retry_after: float
    ended: bool
    def __init__(self, id: _Optional[int] = ..., error: _Optional[str] = ..., what: _Optional[str] = ..., retry_after: _Optional[float] = ..., ended: bool = ...) -> None: ...
