"""A small model hub on this machine: it serves folders, and can misbehave in every way that one does."""

import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANSWERS = {
    "list": b"[1, 2]",
    "null": b"null",
    "number": b"5",
    "empty": b"{}",
    "page": b"<html>log in</html>",
    "bytes": b"\xff\xfe",
    "siblings": b'{"id": 5, "sha": 5, "siblings": [null]}',
}
"""What a captive portal or a broken proxy says instead."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server
        path = self.path.split("?")[0]
        hub.asked.append(path)
        if hub.mood == "hangs up":
            self.connection.close()
        elif hub.mood == "redirects":
            self._answer(302, b"", Location=self.path)
        elif hub.mood in ANSWERS:
            self._answer(200, ANSWERS[hub.mood])
        elif hub.mood.isdigit():
            self._answer(int(hub.mood), b"")
        elif "/resolve/" in path:
            self._file(hub.folder / path.split(f"/resolve/{COMMIT}/")[1])
        elif "/tree/" in path:
            self._answer(200, json.dumps(hub.listing()).encode())
        else:
            names = [{"rfilename": entry["path"]} for entry in hub.listing()]
            self._answer(200, json.dumps({"id": "a/b", "sha": COMMIT, "siblings": names}).encode())

    do_HEAD = do_GET

    def _file(self, path):
        if path.is_file():
            content = path.read_bytes()
            self._answer(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"')
        else:
            self._answer(404, b"", **{"X-Error-Code": "EntryNotFound"})

    def _answer(self, status, content, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


class Hub(ThreadingHTTPServer):
    """Serves `folder` as the model a/b. mood: "well", "hangs up", "redirects", a status, or one of `ANSWERS`."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.mood, self.asked = folder, "well", []

    def listing(self):
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [
            {
                "type": "file",
                "path": str(path.relative_to(self.folder)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in files
        ]

    @property
    def fetched(self):
        """Names of the files that were asked for."""
        return {path.split(f"/resolve/{COMMIT}/")[1] for path in self.asked if "/resolve/" in path}


@contextmanager
def serving(folder: Path):
    hub = Hub(folder)
    Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
