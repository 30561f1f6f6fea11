"""A hub on loopback with one data set and one model, as much of it as the library asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(files: dict[str, bytes], card: dict[str, object], name: str = "owner/rows") -> Iterator[str]:
    """A hub whose data set `name` has these files and this card; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path in (f"/api/datasets/{name}", f"/api/datasets/{name}/revision/main"):
                siblings = [
                    {"rfilename": file, "size": len(content), "blobId": hashlib.sha256(content).hexdigest()}
                    for file, content in files.items()
                ]
                about = {"id": name, "sha": COMMIT, "siblings": siblings, "cardData": card, "tags": []}
                self._answer(200, json.dumps(about).encode())
            elif path.startswith(f"/datasets/{name}/resolve/{COMMIT}/"):
                content = files[path.split(f"/{COMMIT}/")[1]]
                self._answer(200, content)
            else:
                self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET

        def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            fixed = {
                "Content-Length": str(len(content)), "Content-Type": "application/json", "X-Repo-Commit": COMMIT,
                "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            }  # fmt: skip
            for key, value in {**fixed, **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
