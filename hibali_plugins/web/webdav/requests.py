"""Send requests to a WebDAV server, by paths below its URL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import ClassVar
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

from hibali.events import Listener, ignore
from hibali.http.client import Bytes, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.login import Authorization
from hibali.http.rest import MOST_ANSWER, SAFE, Call, Policy, RestClient

_RESPONSE_SECONDS = RESPONSE_SECONDS
_LISTING_SECONDS = 3600.0  # a listing of a million names takes long
_MOST_LISTING = 1024 * 1024 * 1024  # of a listing, which is parsed while it arrives and stored on disk


class WebdavClient(RestClient):
    """One server below one URL; thread-safe. Every path is unquoted bytes below that URL."""

    policy = Policy(attempts=4, longest_pause=30.0, ends=False, redirects=3)
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        url: str,
        subject: str,
        authorization: Authorization | None = None,
        on_event: Listener = ignore,
    ) -> None:
        """Set the fields; `url` is http or https, `subject` names the site in errors."""
        super().__init__(url, subject, login=authorization, on_event=on_event)

    def target(self, path: bytes, *, folder: bool = False) -> str:
        """Return the request target for a path; with `folder` it ends in a slash."""
        return self.base + self._below(path, folder=folder)

    def _below(self, path: bytes, *, folder: bool = False) -> str:
        if not path:
            return "/" if folder or not self.base else ""
        return "/" + quote_from_bytes(path, safe=SAFE).rstrip("/") + ("/" if folder else "")

    def address(self, path: bytes) -> str:
        """Return the full URL for the headers Destination and If."""
        return self.origin + self.target(path)

    def name_in(self, href: str, folder: bytes) -> bytes | None:
        """Return the component below `folder` that an href names, b"" for the folder itself, else None."""
        # A server behind a proxy may use another host name, so only the path counts.
        path = unquote_to_bytes(urlsplit(href).path if "://" in href else href.partition("?")[0])
        above = unquote_to_bytes(self.target(folder, folder=True))
        if path.rstrip(b"/") == above.rstrip(b"/"):
            return b""
        name = path.removeprefix(above)
        if name == path or b"/" in name.removesuffix(b"/"):
            return None
        name = name.removesuffix(b"/")
        return None if name in {b"", b".", b".."} or b"\0" in name else name

    def request(
        self,
        method: str,
        path: bytes = b"",
        *,
        folder: bool = False,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        accept: Collection[int] = (),
        receive: Receive | None = None,
        begin: Callable[[Response], None] | None = None,
        attempts: int = 0,
        most: int | None = None,
        content: int = 0,
        urgent: bool = False,
    ) -> Response:
        """Send one request, with retries. Raise the errors of `error_of` for statuses not in `accept`.

        `receive` receives a successful body in chunks, after `begin` received the head, up to `most` bytes.
        Without it the body is returned, up to 4 MiB. `content` is the expected size of file content in
        bytes, which extends the timeout.
        """
        seconds = _RESPONSE_SECONDS if receive is None else _LISTING_SECONDS
        call = Call(
            method,
            self._below(path, folder=folder),
            body=body,
            headers=headers or {},
            accept=accept,
            most=MOST_ANSWER if receive is None else _MOST_LISTING if most is None else most,
            seconds=request_timeout(len(body) + content, seconds),
            receive=receive,
            begin=begin,
            urgent=urgent,
        )
        return self.repeat(call, attempts=attempts)

    def put(self, path: bytes, pieces: Iterator[Bytes], size: int, headers: Mapping[str, str]) -> Response:
        """Send PUT with chunks of `size` bytes in total; see `upload`."""
        return self.upload(Call("PUT", self._below(path), headers=headers), pieces, size)
