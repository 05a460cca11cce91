"""What we use of pysyncobj, imported here alone: it replaces `socket.inet_ntop` for the whole process, with a
function that works on Windows only. That is undone before anybody can notice."""

from __future__ import annotations

import socket

_inet_ntop = socket.inet_ntop
try:
    from pysyncobj import FAIL_REASON, SERIALIZER_STATE, SyncObj, SyncObjConf, replicated
    from pysyncobj.transport import TCPTransport
finally:
    socket.inet_ntop = _inet_ntop

__all__ = [
    "FAIL_REASON",
    "SERIALIZER_STATE",
    "SyncObj",
    "SyncObjConf",
    "TCPTransport",
    "replicated",
]
