"""Send requests to OpenNeuro: for the token of a repository, and to the annex of the worker that has it.

The API key gets a token for one dataset (packages/openneuro-server, resolvers/git.ts), which the worker accepts (services/datalad,
handlers/annex.py). An upload that broke off can leave the part that arrived under the key, and an answer to HEAD does not tell; so the
length that GET announces is compared, and what was sent is read back.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError
from hibali.events import Listener
from hibali.http.client import Bytes, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import error_of
from hibali.http.login import Authorization
from hibali.http.rest import Call, RestClient
from hibali.request_limits import RequestLimit
from hibali.subprocesses import remember_secret
from hibali.text import printable
from hibali_plugins.openneuro.settings import OpenNeuroSettings
from transfers.stores.bearer.tokens import Tokens

_ACCESS = "mutation ($id: ID!) { prepareRepoAccess(datasetId: $id) { token endpoint } }"
_USER = "openneuro-cli"
_SOMEWHERE_ELSE = 303  # the worker dropped the content, which is in the object store of published snapshots
_OBJECT_STORE = re.compile(r"https?://([a-z0-9.-]+\.)?s3([.-][a-z0-9-]+)?\.amazonaws\.com/.+")


class DraftService:
    """The requests for one dataset; thread-safe.

    Attributes:
        dataset: Its number.
        login: The header of requests to the worker; renewed when the worker refuses it.
        author: Name and address of the account, as the token has them.
    """

    def __init__(
        self, settings: OpenNeuroSettings, subject: str, limit: RequestLimit, on_event: Listener
    ) -> None:
        """`subject` is the site in errors."""
        self.subject = subject
        self.author = ("hibali", "hibali@localhost")
        self.dataset = settings.dataset
        self._key = Tokens(settings.bearer, subject).authorization()
        self._api = RestClient(settings.url, subject, login=self._key, limit=limit, on_event=on_event)
        self._worker = _Worker(settings.url, subject, limit=limit, on_event=on_event)
        self.login = self._worker.login = Authorization(self._obtain)

    @property
    def git_url(self) -> str:
        """The address of the repository for git."""
        self.login.header()  # its answer has the number of the worker
        return self._worker.origin + self._worker.base

    def _obtain(self, refused: str) -> str:
        """Return a login for the worker in place of the refused one.

        An API key that expired is taken for no login at all: then there is no access, or only that of the public.
        """
        del refused
        found = self._access()
        if found is None and self._key is not None:
            self._key.renew(self._key.header())
            found = self._access()
        if found is None:
            raise AccessError(
                "denied",
                f"the API key gives no permission to change {self.dataset}, or it has expired",
                subject=self.subject,
                hint="Make a new key on OpenNeuro's page for API keys, and check the permissions of the dataset.",
            )
        token, claims = found
        self.author = (
            _plain(claims.get("name")) or "hibali",
            _plain(claims.get("email")) or "hibali@localhost",
        )
        return "Basic " + base64.b64encode(f"{_USER}:{token}".encode()).decode("ascii")

    def _access(self) -> tuple[str, dict[str, Any]] | None:
        """Return a token with which the draft can be changed, and what it says; None without that permission."""
        call = Call.with_json("POST", "/crn/graphql", {"query": _ACCESS, "variables": {"id": self.dataset}})
        answer = self._api.ask_record(call)
        data = answer.get("data")
        access = data.get("prepareRepoAccess") if isinstance(data, dict) else None
        if not isinstance(access, dict):
            self._check_message(json.dumps(answer.get("errors")))
            return None
        token, number = str(access.get("token")), access.get("endpoint")
        claims = _claims(token)
        if claims is None or not isinstance(number, int) or isinstance(number, bool):
            raise self._api.bad_answer("it has no token of a repository")
        remember_secret(token)
        self._worker.base = f"{self._api.base}/git/{number:d}/{self.dataset}"
        scopes = claims.get("scopes")
        return (token, claims) if isinstance(scopes, list) and "dataset:git:write" in scopes else None

    def _check_message(self, message: str) -> None:
        if "does not exist" in message or "has been deleted" in message:
            raise NotFoundError(
                "no-such-dataset",
                f"OpenNeuro has no dataset {self.dataset}",
                subject=self.subject,
                hint="Create it on OpenNeuro's page first; its number goes into the settings of the site.",
            )
        if "do not have access" not in message:
            raise TryLaterError(
                "bad-answer",
                "OpenNeuro could not grant access to the repository",
                subject=self.subject,
                hint="Run the same command again later.",
                transient=False,
            )

    # The annex

    def size_of(self, key: str) -> int | None:
        """Return how many bytes the server has under a key, -1 if they are in its object store, None if it has none.

        Raises `TryLaterError` for an answer that the worker never sends, such as a page of a proxy or of a login.
        """
        self.login.header()
        call = Call(
            "GET", _path(key), accept={404, _SOMEWHERE_ELSE}, receive=lambda _: None, begin=lambda _: True
        )
        response = self._worker.repeat(call)
        if response.status == 404:
            return None
        if response.status == _SOMEWHERE_ELSE:
            if not _OBJECT_STORE.fullmatch(response.headers.get("location", "")):
                raise self._worker.bad_answer("it redirects to another place than the object store")
            return -1
        length = response.headers.get("content-length", "")
        if not re.fullmatch("[0-9]{1,18}", length):
            raise self._worker.bad_answer("it does not say how long a content is")
        return int(length)

    def digest_of(self, key: str, most: int, check: Callable[[], None] = lambda: None) -> str | None:
        """Return the sha256 of all that the server has under a key, None if it has nothing here. Raise for more than `most` bytes.

        `check` is called for each piece, and raises to end.
        """

        def ask() -> str | None:
            summed = hashlib.sha256()

            def receive(piece: Bytes) -> None:
                check()
                summed.update(piece)

            response = self._worker.send(
                Call(
                    "GET",
                    _path(key),
                    accept={404, _SOMEWHERE_ELSE},
                    most=most,
                    receive=receive,
                    seconds=request_timeout(most, RESPONSE_SECONDS),
                )
            )
            return summed.hexdigest() if response.status < 300 else None

        return self._worker.tried(ask)

    def content(self, key: str, size: int) -> bytes | None:
        """Return the content under a key, None if the server does not have it here. Raise for more than `size` bytes."""
        if self.size_of(key) in {None, -1}:
            return None
        return bytes(self._worker.repeat(Call("GET", _path(key), most=size)).body)

    def send(self, key: str, pieces: Iterable[Bytes], size: int) -> None:
        """Send a content. The server may keep the part that arrived if the upload breaks off.

        Raises:
            TryLaterError: Transient; also if another upload of this key ended first, or the token expired.
        """
        call = Call("POST", _path(key), accept={409})
        if self._worker.upload(call, pieces, size).status == 409:
            raise TryLaterError(
                "busy", "the server got this content from another upload meanwhile", subject=self.subject
            )

    def discard(self, key: str) -> None:
        """Remove what an upload left that broke off."""
        self._worker.repeat(Call("DELETE", _path(key)))

    def close(self) -> None:
        """Close the connections."""
        self._api.close()
        self._worker.close()


class _Worker(RestClient):
    """The worker that has the repository; its path and its login are known after the first request to the API."""

    @property
    def login(self) -> Authorization | None:
        """The login of requests."""
        return self._login

    @login.setter
    def login(self, login: Authorization) -> None:
        self._login = login

    def _error_of(self, call: Call, response: Response) -> HibaliError:
        """Return the error for a status, without the text of the answer, which may be that of an attacker."""
        del call
        if response.status in {401, 403}:
            return AccessError(
                "denied",
                "OpenNeuro refused the token of the repository",
                subject=self.subject,
                hint="Check the permissions of the dataset on its page.",
            )
        return error_of(response.status, self.subject)


def _path(key: str) -> str:
    return f"/annex/{quote(key, safe='')}"


def _claims(token: str) -> dict[str, Any] | None:
    """Return what a JSON web token says; only the server can tell whether it is valid."""
    parts = token.split(".") if token.isascii() and len(token) < 16384 else []
    if len(parts) != 3 or any(letter in token for letter in "\r\n :"):
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _plain(value: Any) -> str:
    """Return a name or address without what ends one in a commit."""
    return (
        "".join(letter for letter in printable(value)[:100] if letter not in "<>\n\0")
        if isinstance(value, str)
        else ""
    )
