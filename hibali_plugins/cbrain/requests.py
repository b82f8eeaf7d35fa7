"""Send requests to a CBRAIN portal, whose errors say what to do next."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from hibali.config.model import Site
from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.login import Authorization
from hibali.http.rest import Call, Policy, RestClient
from hibali_plugins.cbrain.errors import error_of
from hibali_plugins.cbrain.records import Record, not_understood, read_record

MOST_ANSWER = 16 * 1024 * 1024  # of a page of records, and of any other answer that is held in memory


class Portal(RestClient):
    """Requests to one portal; thread-safe. It sends exactly the parameters it is given (see `client`)."""

    # a new login may end, too, when the portal restarts
    policy = Policy(attempts=4, longest_pause=30.0, ends=False, renewals=4, unexecuted=frozenset({429}))

    def __init__(self, site: Site, login: Authorization | None = None, on_event: Listener = ignore) -> None:
        super().__init__(site.own.url, site.name, login=login, on_event=on_event)

    def get(self, path: str, **more: Any) -> Any:
        """Return the JSON with which the portal answers to a question."""
        return self.ask(Call("GET", path, **{"most": MOST_ANSWER, "seconds": RESPONSE_SECONDS, **more}))

    def record(self, kind: type[Record], path: str, **more: Any) -> Record:
        """Return the record with which the portal answers to a question."""
        return read_record(kind, self.get(path, **more), self.subject)

    def change(self, method: str, path: str, content: Any, **more: Any) -> Response:
        """Send JSON whose repetition changes nothing, such as an update or a deletion, with retries."""
        return self.repeat(
            Call.with_json(method, path, content, most=MOST_ANSWER, seconds=RESPONSE_SECONDS, **more)
        )

    def receive(
        self, call: Call, receive: Receive, *, limit: int, restart: Callable[[], None] = lambda: None
    ) -> Response:
        """Receive content in chunks, of at most `limit` bytes.

        `restart` is called before the first chunk of each attempt, because a failed one may have delivered chunks.
        """
        seconds = request_timeout(limit)
        return self.repeat(
            replace(call, most=limit, seconds=seconds, receive=receive, begin=lambda _: restart())
        )

    def send_form(
        self,
        path: str,
        fields: Iterable[tuple[str, str | int]],
        file: tuple[str, str],
        pieces: Iterable[Bytes],
        size: int,
        *,
        subject: str = "",
    ) -> Response:
        """Send a form with a file (its field and name) once, whose `size` bytes come in pieces.

        The pieces are consumed once, so nothing is sent again: not even after a renewed login. After a
        `TryLaterError` it is unknown whether the portal has the file.
        """
        boundary = f"hibali-{secrets.token_hex(16)}"
        head, tail = _form(boundary, fields, file)

        def body() -> Iterator[Bytes]:
            yield head
            yield from pieces
            yield tail

        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        call = Call("POST", path, headers=headers, subject=subject, most=MOST_ANSWER)
        return self.upload(call, body(), len(head) + size + len(tail), once=True)

    def bad_answer(self, reason: str) -> HibaliError:
        """See RestClient."""
        return not_understood(reason, self.subject)

    def _error_of(self, call: Call, response: Response) -> HibaliError:
        return error_of(response, call.subject or self.subject, self.subject)

    def _uncertain(self, call: Call, response: Response) -> HibaliError:
        problem = self._error_of(call, response)
        problem.transient = False
        return problem

    def _expired(self, subject: str) -> HibaliError:
        return TryLaterError(
            "login-renewed",
            "the portal rejected the login during the upload; hibali has logged in again",
            subject=subject,
        )


def _form(
    boundary: str, fields: Iterable[tuple[str, str | int]], file: tuple[str, str]
) -> tuple[bytes, bytes]:
    """Return what is sent before and after a file's content (RFC 7578); names and values are plain text."""
    lines = []
    for name, value in fields:
        lines += [f"--{boundary}", f'Content-Disposition: form-data; name="{name}"', "", str(value)]
    field, name = file
    lines += [
        f"--{boundary}",
        f'Content-Disposition: form-data; name="{field}"; filename="{name}"',
        "Content-Type: application/octet-stream",
        "",
        "",
    ]
    return "\r\n".join(lines).encode(), f"\r\n--{boundary}--\r\n".encode()
