"""Limit the answers that the Globus SDK reads: their size after unpacking, the time they take, and the host they come from."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import globus_sdk
import requests
from requests.adapters import HTTPAdapter

from hibali.answers import ANSWER_SECONDS, MOST_ANSWER, Deadline, too_long, watched
from hibali.errors import UsageError

_ABOUT = "Globus"
_ANSWER_SECONDS = ANSWER_SECONDS
_MOST = MOST_ANSWER
_PIECE = 64 * 1024


def bound_answers(client: globus_sdk.BaseClient) -> None:
    """Let a client of the SDK ask its own service alone, and read no answer without end."""
    adapter = _Adapter(client.base_url)
    for scheme in ("https://", "http://"):
        client.transport.session.mount(scheme, adapter)


class _Adapter(HTTPAdapter):
    """The one of requests, which sends each request by itself, those of redirects too."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self._origin = (parts.scheme, parts.netloc)
        super().__init__()

    def init_poolmanager(self, *words: Any, **more: Any) -> None:
        super().init_poolmanager(*words, **more)
        _watch(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **more)
        if not known:
            _watch(manager)
        return manager

    def send(self, request: requests.PreparedRequest, *words: Any, **more: Any) -> requests.Response:
        parts = urlsplit(str(request.url))
        if (parts.scheme, parts.netloc) != self._origin:
            raise UsageError(
                "wrong-endpoint",
                "the service leads to another host, which is not followed",
                about=_ABOUT,
                hint="Unset the variables GLOBUS_SDK_SERVICE_URL_*, which say where Globus is.",
            )
        more["stream"] = True
        with Deadline(_ANSWER_SECONDS, _ABOUT):
            response = super().send(request, *words, **more)
            pieces: list[bytes] = []
            size = 0
            for piece in response.iter_content(_PIECE):
                size += len(piece)
                if size > _MOST:
                    response.close()
                    raise too_long(_ABOUT, _MOST)
                pieces.append(piece)
        response._content = b"".join(pieces)  # noqa: SLF001  # as its property `content` does
        return response


def _watch(manager: Any) -> None:
    manager.pool_classes_by_scheme = {
        scheme: watched(kind) for scheme, kind in manager.pool_classes_by_scheme.items()
    }
