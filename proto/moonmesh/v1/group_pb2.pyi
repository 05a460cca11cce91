from moonmesh.v1 import serving_pb2 as _serving_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowRequest(_message.Message):
    __slots__ = ("member", "epoch")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    member: str
    epoch: int
    def __init__(self, member: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class FollowPage(_message.Message):
    __slots__ = ("epoch", "snapshot_begin", "blocks", "snapshot_end")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    snapshot_begin: _serving_pb2.SnapshotBegin
    blocks: _serving_pb2.OfferedBlocks
    snapshot_end: _serving_pb2.SnapshotEnd
    def __init__(self, epoch: _Optional[int] = ..., snapshot_begin: _Optional[_Union[_serving_pb2.SnapshotBegin, _Mapping]] = ..., blocks: _Optional[_Union[_serving_pb2.OfferedBlocks, _Mapping]] = ..., snapshot_end: _Optional[_Union[_serving_pb2.SnapshotEnd, _Mapping]] = ...) -> None: ...
