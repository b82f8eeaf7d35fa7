"""Run a web server over a folder, with index pages, times, ranges and an optional login."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import re
from pathlib import Path
from typing import Any

from tests.services.serving import serve_in_thread

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class WebServer:
    """Python's own handler with ranges; `seen` are the requests, `login` the user and password."""

    def __init__(self, root: Path, *, login: tuple[str, str] | None = None, ranges: bool = True) -> None:
        self.root = root
        self.ranges = ranges
        self.seen: list[str] = []
        self.redirect: str | None = None
        self.wanted = None
        if login is not None:
            self.wanted = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are written one after the other

            def __init__(self, *words: Any) -> None:
                super().__init__(*words, directory=os.fspath(root))

            def send_head(self) -> Any:
                server.seen.append(f"{self.command} {self.path}")
                if server.wanted is not None and self.headers.get("Authorization") != server.wanted:
                    self.send_error(401)
                    return None
                if server.redirect is not None:
                    self.send_response(302)
                    self.send_header("Location", server.redirect)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                path = Path(self.translate_path(self.path))
                found = _RANGE.fullmatch(self.headers.get("Range", ""))
                if found and server.ranges and path.is_file():
                    return self._part(path, int(found[1]), int(found[2]))
                return super().send_head()

            def _part(self, path: Path, first: int, last: int) -> Any:
                size = path.stat().st_size
                last = min(last, size - 1)
                self.send_response(206)
                self.send_header("Content-Type", self.guess_type(path))
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                with path.open("rb") as file:
                    file.seek(first)
                    content = file.read(last - first + 1)
                self.wfile.write(content)
                self.close_connection = len(content) <= last - first  # the file was shortened meanwhile

            def copyfile(self, source: Any, outputfile: Any) -> None:
                super().copyfile(source, outputfile)
                self.close_connection = True  # the file may have been shortened, too

            def log_message(self, *words: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve_in_thread(self._server)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()
