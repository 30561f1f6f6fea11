"""A proxy before the real S3 server that spoils chosen requests: cuts, answers of its own, silence, being away.

    with proxy_before(server.storage) as proxy:
        proxy.spoil(503("SlowDown"), times=3, method="PUT")
        open_store(proxy.storage).write("x", b"x")

What it does not spoil goes to the server byte for byte, signature and host name included. It also serves as a proxy
in the sense of HTTP_PROXY, so that host names which no resolver knows reach the server.
"""

import http.client
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pipeline.config import Storage

HOP = {"connection", "transfer-encoding", "keep-alive", "proxy-connection"}


@dataclass
class Seen:
    """A request as it came in. `path` is the raw path with its query string."""

    method: str
    path: str
    host: str
    body: bytes


@dataclass
class Fault:
    """What becomes of the requests that match. `act` answers, or cuts, or lets pass by returning True."""

    act: Callable[["Handler", Seen], bool]
    method: str
    path: "re.Pattern[str]"
    times: int
    after: int = 0


def answers(status: int, code: str, message: str = "spoiled by the test") -> Callable[["Handler", Seen], bool]:
    """An answer with an S3 error, without asking the server."""

    def act(handler: "Handler", seen: Seen) -> bool:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        handler.answer(status, [("Content-Type", "application/xml")], b"" if seen.method == "HEAD" else body)
        return False

    return act


def cut_request(handler: "Handler", seen: Seen) -> bool:
    """The connection breaks when half of the body has come."""
    handler.hang_up()
    return False


def cut_answer(handler: "Handler", seen: Seen) -> bool:
    """The server does what it was asked, and the connection breaks in the middle of its answer's body."""
    status, headers, body = handler.forward(seen)
    handler.answer(status, headers, body, stop_at=len(body) // 2)
    handler.hang_up()
    return False


def lose_answer(handler: "Handler", seen: Seen) -> bool:
    """The server does what it was asked, and nothing of its answer comes back."""
    handler.forward(seen)
    handler.hang_up()
    return False


def says_written(handler: "Handler", seen: Seen) -> bool:
    """What a store says that does not know conditions of writes: written."""
    handler.answer(200, [("ETag", '"0"')], b"")
    return False


@dataclass
class Proxy:
    """A running proxy; `storage` is that of the server, with the proxy as endpoint."""

    storage: Storage
    upstream: tuple[str, int]
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    away: bool = False
    lock: Any = field(default_factory=threading.Lock)

    def spoil(
        self, act: Callable[["Handler", Seen], bool], method: str = "", path: str = "", times: int = 1, after: int = 0
    ) -> None:
        """Spoil the next `times` requests of a method (all if empty) whose path matches, `after` have passed."""
        with self.lock:
            self.faults.append(Fault(act, method, re.compile(path), times, after))

    def heal(self) -> None:
        """Let everything pass from now on."""
        with self.lock:
            self.faults.clear()
            self.away = False

    def fault_for(self, seen: Seen) -> Fault | None:
        with self.lock:
            self.seen.append(seen)
            for fault in self.faults:
                if fault.times and fault.method in ("", seen.method) and fault.path.search(seen.path):
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def requests(self, method: str = "", path: str = "") -> int:
        """How many requests of that kind have come in."""
        with self.lock:
            return sum(method in ("", seen.method) and bool(re.search(path, seen.path)) for seen in self.seen)


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_any(self) -> None:
        if self.proxy.away:
            self.hang_up()
            return
        size = int(self.headers.get("Content-Length") or 0)
        seen = Seen(self.command, self.path, self.headers.get("Host", ""), b"")
        fault = self.proxy.fault_for(seen)
        if fault is not None and fault.act is cut_request:
            self.rfile.read(size // 2)
        else:
            seen.body = self.rfile.read(size)
        if fault is None or fault.act(self, seen):
            status, headers, body = self.forward(seen)
            self.answer(status, headers, body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def forward(self, seen: Seen) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server, with the headers as they came."""
        connection = http.client.HTTPConnection(*self.proxy.upstream, timeout=60)
        try:
            parts = urlsplit(seen.path)
            target = seen.path if not parts.scheme else seen.path.split(parts.netloc, 1)[1]
            connection.putrequest(seen.method, target or "/", skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {*HOP, "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(seen.body or None)
            reply = connection.getresponse()
            body = reply.read()
            kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in HOP]
            if seen.method != "HEAD" and "content-length" not in {name.lower() for name, _ in kept}:
                kept.append(("Content-Length", str(len(body))))
            return reply.status, kept, body
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, stop_at: int | None = None) -> None:
        """Send an answer, or its head and the beginning of its body."""
        self.send_response_only(status)
        if "content-length" not in {name.lower() for name, _ in headers}:
            headers = [*headers, ("Content-Length", str(len(body)))]
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:stop_at])
        self.wfile.flush()

    def hang_up(self) -> None:
        """End the connection here and now."""
        self.close_connection = True
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Not to the terminal."""


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away in the middle are what this is for."""


@contextmanager
def proxy_before(storage: Storage) -> Iterator[Proxy]:
    """Run a proxy before the server of `storage` for the block."""
    parts = urlsplit(storage.endpoint_url or "")
    assert parts.hostname
    assert parts.port
    handler = type("BoundHandler", (Handler,), {})
    server = Quiet(("127.0.0.1", 0), handler)
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    proxy = Proxy(storage.model_copy(update={"endpoint_url": endpoint}), (parts.hostname, parts.port))
    handler.proxy = proxy  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
