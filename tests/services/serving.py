"""Serve a double in a thread: docs/decisions/tests.md."""

from __future__ import annotations

import socketserver
import threading


def serve_in_thread(server: socketserver.BaseServer) -> threading.Thread:
    """Answer requests until `server.shutdown()`, which takes as long as the interval: half a second without it, in each test."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    return thread
