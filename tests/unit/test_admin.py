"""The admin client against a small HTTP server: its answers, its bounds, its errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from local_group import admin
from local_group.admin import AdminClient, Health, Segment, SyncAdminClient
from local_group.process_errors import AdminError

Answer = tuple[int, bytes]


class Server:
    """Answers what `answer(path)` says; `hang` makes it keep silent until released."""

    def __init__(self) -> None:
        self.answer: Callable[[str], Answer] = lambda _: (200, b"{}")
        self.asked: list[str] = []
        self.hang = False
        self.drip: tuple[int, float] | None = None
        """Bytes of the answer at a time, and seconds between."""
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if outer.hang:
                    outer.release.wait(30)
                status, body = outer.answer(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                size, pause = outer.drip or (len(body) or 1, 0.0)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    for at in range(0, len(body), size):
                        self.wfile.write(body[at : at + size])  # a client that gave up has gone
                        outer.release.wait(pause)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.release.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def batch_answer(path: str) -> Answer:
    """As the master answers: keys ending in `!` are absent, in `?` failing, in `~` on SSD alone."""
    data: dict[str, object] = {}
    for key in map(unquote, urlsplit(path).query.removeprefix("keys=").split(",")):
        if key.endswith("!"):
            data[key] = {"ok": False, "error": "OBJECT_NOT_FOUND", "values": None}
        elif key.endswith("?"):
            data[key] = {"ok": False, "error": "REPLICA_IS_NOT_READY", "values": None}
        elif key.endswith("~"):
            data[key] = {"ok": True, "error": None, "values": [], "local_disk_values": [{}]}
        else:
            data[key] = {"ok": True, "error": None, "values": [{"size_": len(key)}]}
    return 200, json.dumps({"success": True, "data": data}).encode()


async def test_query(server: Server) -> None:
    server.answer = batch_answer
    async with AdminClient(server.url) as client:
        found = await client.query(["a", "b c", "x!", "y?", "z~", "c,d", "", "p%41&q=#é/+", "a"])
    assert found == {
        "a": 1, "b c": 3, "y?": None, "z~": 0, "c,d": None, "": None, "p%41&q=#é/+": 11,
    }  # fmt: skip


def test_without_an_event_loop(server: Server) -> None:
    server.answer = batch_answer
    with SyncAdminClient(server.url) as sync:
        assert sync.query(["a", "c,d"]) == {"a": 1, "c,d": None}
        assert sync.query([]) == {}
        server.answer = lambda _: (500, b"oh")
        with pytest.raises(AdminError, match="answered 500"):
            sync.query(["a"])
        server.answer = health_and_segments
        assert not sync.health().service_ready
        assert len(sync.segments()) == 2


async def test_a_query_is_split_by_keys_and_by_length(server: Server) -> None:
    server.answer = batch_answer
    async with AdminClient(server.url) as client:
        many = [f"k{i}" for i in range(1201)]
        assert set(await client.query(many)) == set(many)
        assert len(server.asked) == 3
        server.asked.clear()
        long = [f"{i}é" * 1000 for i in range(20)]  # 7 bytes a character once quoted
        assert len(await client.query(long)) == 20
    assert len(server.asked) > 1
    assert max(map(len, server.asked)) <= admin.QUERY_URL_BYTES_MAX + 100


async def test_a_key_that_the_answer_leaves_out_is_unknown(server: Server) -> None:
    server.answer = lambda _: (200, b'{"success":true,"data":{}}')
    async with AdminClient(server.url) as client:
        assert await client.query(["a"]) == {"a": None}


async def test_list_keys(server: Server) -> None:
    text = "a\nb,c\né\n\nlast".encode() + b"\xff"
    server.answer = lambda _: (200, text)
    listed: list[bytes] = []
    async with AdminClient(server.url) as client:
        assert await client.list_keys(listed.extend) == len(text)
    assert listed == text.split(b"\n")


async def test_others_run_while_a_long_listing_comes(server: Server) -> None:
    server.answer = lambda _: (200, b"".join(b"%087d\n" % n for n in range(10_000)))
    sizes: list[int] = []
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with AdminClient(server.url) as client:
        beside = asyncio.create_task(other())
        await client.list_keys(lambda lines: sizes.append(len(lines)))
        beside.cancel()
    assert sum(sizes) == 10_001, "the last line is empty"
    assert max(sizes) < 400
    assert turns >= len(sizes)


async def test_a_listing_above_its_bound_is_an_error(server: Server) -> None:
    server.answer = lambda _: (200, b"key\n" * 1000)
    listed: list[bytes] = []
    async with AdminClient(server.url) as client:
        with pytest.raises(AdminError, match="more than 3999 bytes"):
            await client.list_keys(listed.extend, 3999)
        assert await client.list_keys(listed.extend, 4000) == 4000


def health_and_segments(path: str) -> Answer:
    if path == "/health":
        return 503, b'{"role":"standby","ha_state":"following","service_ready":false}'
    segment = {
        "segment_name": "h:1", "te_endpoint": "h:2", "size_bytes": 5,
        "allocator_used_bytes": 3, "status": "OK", "segment_id": "7-8",
    }  # fmt: skip
    return 200, json.dumps({"segments": [segment, {**segment, "status": "UNMOUNTING"}]}).encode()


async def test_health_and_segments(server: Server) -> None:
    server.answer = health_and_segments
    async with AdminClient(server.url) as client:
        assert await client.health() == Health(False, "standby", "following")
        good, bad = await client.segments()
    assert good == Segment("h:1", "h:2", 5, 3, "OK", "7-8")
    assert (good.ok, bad.ok) == (True, False)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, b"oh"), "answered 500"),
        ((302, b""), "answered 302"),
        ((200, b"<html>"), "not JSON: b'<html>'"),
        ((200, b"[]"), "not as expected"),
        ((200, b'{"data": {"a": {"ok": true, "values": [{}]}}}'), "not as expected"),
        ((200, b'{"data": {"a": 7}}'), "not as expected"),
        ((200, b'{"data": null}'), "not as expected"),
    ],
)
async def test_odd_answers(server: Server, answer: Answer, said: str) -> None:
    server.answer = lambda _: answer
    async with AdminClient(server.url) as client:
        with pytest.raises(AdminError, match=said):
            await client.query(["a"])


async def test_an_answer_without_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "ANSWER_BYTES_MAX", 1000)
    server.answer = lambda _: (200, b" " * 1001)
    async with AdminClient(server.url) as client:
        with pytest.raises(AdminError, match="more than 1000 bytes"):
            await client.health()


async def test_silence_ends_at_the_timeout(server: Server) -> None:
    server.hang = True
    async with AdminClient(server.url, timeout=0.2, listing_silence=0.2) as client:
        with pytest.raises(AdminError, match=r"did not answer within 0\.2 s"):
            await client.health()
        with pytest.raises(
            AdminError, match=r"sent nothing of it for 0\.2 s; 0 bytes had come"
        ) as caught:
            await client.list_keys(lambda _: None)
    assert "overloaded" in (caught.value.hint or "")


async def test_a_listing_may_take_long_as_long_as_it_comes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"key\n" * 100
    server.answer = lambda _: (200, body)
    async with AdminClient(server.url, timeout=0.2, listing_silence=0.5) as client:
        server.drip = (50, 0.1)
        began = time.monotonic()
        assert await client.list_keys(lambda _: None) == len(body)
        assert time.monotonic() - began > 0.5, "longer than one silence"
        server.drip = (200, 30.0)
        with pytest.raises(AdminError, match=r"for 0\.5 s; 200 bytes had come"):
            await client.list_keys(lambda _: None)
        # In all, as long as the most bytes that it may have take at the least rate, and a silence.
        monkeypatch.setattr(admin, "LISTING_BYTES_PER_S_MIN", 1000)
        server.drip = (1, 0.1)
        began = time.monotonic()
        with pytest.raises(AdminError, match=r"not all there after 0\.9 s; \d+ bytes had come"):
            await client.list_keys(lambda _: None, max_bytes=400)
        assert 0.9 <= time.monotonic() - began < 5


async def test_nobody_there() -> None:
    async with AdminClient("http://127.0.0.1:1") as client:
        with pytest.raises(AdminError, match="the master does not answer") as caught:
            await client.health()
    assert caught.value.where == "http://127.0.0.1:1/health"


async def test_no_proxy_is_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server.answer = batch_answer
    async with AdminClient(server.url) as client:
        assert await client.query(["a"]) == {"a": 1}
