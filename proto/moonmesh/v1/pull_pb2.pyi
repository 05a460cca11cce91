from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class PullClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_CLASS_UNSPECIFIED: _ClassVar[PullClass]
    FIRST_TOKEN: _ClassVar[PullClass]
    BATCH: _ClassVar[PullClass]
    PREFETCH: _ClassVar[PullClass]
PULL_CLASS_UNSPECIFIED: PullClass
FIRST_TOKEN: PullClass
BATCH: PullClass
PREFETCH: PullClass
