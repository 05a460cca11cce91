"""A serving process for tests that does as it is told by the environment: STUB, per life (a list).
A life begins with the setup, not in reserve.

serve: as it should; grow: takes memory; silent: listens, then answers no more; exit: ends at once;
nonsense: sends what is no message; fail: says that it cannot serve. The last one holds for all lives
that follow; lives are counted in the file STUB_LIVES.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from pathlib import Path

from moonmesh.v1 import serving_pb2


def say(end: socket.socket, message: serving_pb2.FromServing) -> None:
    raw = message.SerializeToString()
    end.sendall(struct.pack(">I", len(raw)) + raw)


def hear(end: socket.socket) -> serving_pb2.ToServing:
    head = end.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        sys.exit(0)
    (length,) = struct.unpack(">I", head)
    return serving_pb2.ToServing.FromString(end.recv(length, socket.MSG_WAITALL))


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    assert hear(end).HasField("setup")
    lives = Path(os.environ["STUB_LIVES"])
    life = len(lives.read_text()) if lives.exists() else 0
    lives.write_text("x" * (life + 1))
    behaviours = os.environ["STUB"].split(",")
    behaviour = behaviours[min(life, len(behaviours) - 1)]
    if behaviour == "exit":
        sys.exit(3)
    if behaviour == "fail":
        failed = serving_pb2.Failed(what="cannot listen there", where="127.0.0.1:1")
        say(end, serving_pb2.FromServing(failed=failed))
        sys.exit(1)
    taken: list[bytearray] = []
    while True:
        message = hear(end)
        if message.HasField("snapshot_end"):
            say(end, serving_pb2.FromServing(listening=serving_pb2.Listening()))
            if behaviour == "silent":
                time.sleep(600)
            if behaviour == "nonsense":
                end.sendall(struct.pack(">I", 4) + b"\xff" * 4)
        if message.HasField("ping"):
            if behaviour == "grow":  # answering all the while
                taken.append(bytearray(b"x" * (64 << 20)))
            pong = serving_pb2.Pong(n=message.ping.n)
            if message.ping.report:
                pong.report.details_json = '{"blocks": 7}'
                pong.report.store_well = True
            say(end, serving_pb2.FromServing(pong=pong))


if __name__ == "__main__":
    main()
