"""Keep the login of requests to one server."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Authorization:
    """The header `Authorization` of requests to one site; thread-safe.

    It is obtained when it is needed first, and again after the server refused it.
    """

    def __init__(self, obtain: Callable[[str], str]) -> None:
        """`obtain` returns the header in place of a refused one ("" at first), and raises hibali's errors."""
        self._obtain = obtain
        self._header = ""
        self._guard = threading.Lock()

    def header(self) -> str:
        """Return the header. Raises the errors of the login."""
        with self._guard:
            if not self._header:
                self._header = self._obtain("")
            return self._header

    def renew(self, refused: str) -> bool:
        """Obtain a header in place of the `refused` one; return whether there is another one to send.

        Threads whose requests were refused at the same time log in once.
        """
        with self._guard:
            if self._header == refused:
                self._header = self._obtain(refused)
            return self._header != refused


def bearer_authorization(current: Callable[[], str], renew: Callable[[str], str]) -> Authorization:
    """Return the header of a token: the `current` one, or one to which `renew` replaces a refused one."""
    prefix = "Bearer "
    return Authorization(
        lambda refused: prefix + (renew(refused.removeprefix(prefix)) if refused else current())
    )
