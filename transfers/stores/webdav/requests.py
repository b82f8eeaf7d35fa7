"""Send requests to a WebDAV server over a few persistent connections (S15)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from urllib.parse import quote_from_bytes, unquote_to_bytes, urljoin, urlsplit

from hibali.errors import IncompleteError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, HttpClient, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, elsewhere, error_of, explanation
from hibali.http.login import Authorization
from hibali.retry import pause, with_retries

_RESPONSE_SECONDS = RESPONSE_SECONDS
_LISTING_SECONDS = 3600.0  # a listing of a million names takes long
_MOST_REDIRECTS = 3
_MOST_BODY = 4 * 1024 * 1024  # of a response that is held in memory
_MOST_LISTING = 1024 * 1024 * 1024  # of a listing, which is parsed while it arrives and stored on disk
_LONGEST_PAUSE = 30.0  # upper bound for Retry-After
_SAFE = "/-_.~"


class WebdavClient:
    """One server below one URL; thread-safe. Every path is unquoted bytes below that URL."""

    def __init__(
        self,
        url: str,
        subject: str,
        authorization: Authorization | None = None,
        on_event: Listener = ignore,
    ) -> None:
        """Set the fields; `url` is http or https, `subject` names the site in errors."""
        parts = urlsplit(url)
        self.subject = subject
        self.origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.base = "/" + quote_from_bytes(unquote_to_bytes(parts.path).strip(b"/"), safe=_SAFE)
        self._on_event = on_event
        self._authorization = authorization
        self._client = HttpClient(self.origin, subject)

    def target(self, path: bytes, *, folder: bool = False) -> str:
        """Return the request target for a path; with `folder` it ends in a slash."""
        whole = self.base.rstrip("/") + "/" + quote_from_bytes(path, safe=_SAFE) if path else self.base
        return whole.rstrip("/") + "/" if folder else whole

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
        attempts: int = 4,
        most: int | None = None,
        content: int = 0,
    ) -> Response:
        """Send one request, with retries. Raise the errors of `error_of` for statuses not in `accept`.

        `receive` receives a successful body in chunks, after `begin` received the head, up to `most` bytes.
        Without it the body is returned, up to 4 MiB. `content` is the expected size of file content in
        bytes, which extends the timeout.
        """
        limit = _MOST_BODY if receive is None else _MOST_LISTING if most is None else most
        seconds = request_timeout(
            len(body) + content, _RESPONSE_SECONDS if receive is None else _LISTING_SECONDS
        )

        def attempt_once(*, renews: bool = True) -> Response:
            target = self.target(path, folder=folder)
            login = self._login()
            for _ in range(_MOST_REDIRECTS + 1):
                response = self._client.request(
                    method,
                    target,
                    headers={**(headers or {}), **login},
                    body=body,
                    limit=limit,
                    seconds=seconds,
                    receive=receive,
                    begin=begin,
                )
                if renews and self._renewed(response, login):
                    return attempt_once(renews=False)
                if response.status not in {301, 302, 307, 308}:
                    return self._judged(response, accept)
                target = self._follow(target, response)
            raise elsewhere(self.subject)

        return with_retries(attempt_once, subject=self.subject, attempts=attempts, on_event=self._on_event)

    def put(self, path: bytes, pieces: Iterator[Bytes], size: int, headers: Mapping[str, str]) -> Response:
        """Send PUT with chunks of `size` bytes in total, without retry, because sent chunks are not stored.

        An error of `pieces` is raised, and the upload ends incomplete.
        """
        login = self._login()
        response = self._client.upload(self.target(path), pieces, size, {**headers, **login})
        if self._renewed(response, login):
            message = "the login expired during the upload"
            raise IncompleteError("token-expired", message, subject=self.subject, transient=True)
        if response.status >= 300:
            raise error_of(response.status, self.subject, explanation(response.body))
        return response

    def _login(self) -> dict[str, str]:
        return {} if self._authorization is None else {"Authorization": self._authorization.header()}

    def _renewed(self, response: Response, login: Mapping[str, str]) -> bool:
        """Return whether the server refused this login, and there is another one now."""
        if response.status != 401 or self._authorization is None:
            return False
        return self._authorization.renew(login["Authorization"])

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _judged(self, response: Response, accept: Collection[int]) -> Response:
        if response.status < 300 or response.status in accept:
            return response
        if response.status in BUSY:
            retry_after = response.headers.get("retry-after", "")
            pause(min(float(retry_after), _LONGEST_PAUSE) if retry_after.isdigit() else 0.0)
        raise error_of(response.status, self.subject, explanation(response.body))

    def _follow(self, target: str, response: Response) -> str:
        """Return the target of a redirect on this host. Raise `UsageError` for another host."""
        location = urlsplit(urljoin(self.origin + target, response.headers.get("location", "")))
        if f"{location.scheme}://{location.netloc}" != self.origin or location.query or not location.path:
            raise elsewhere(self.subject)
        return quote_from_bytes(unquote_to_bytes(location.path), safe=_SAFE)
