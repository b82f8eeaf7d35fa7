"""Request access to a guarded dataset once, and remember that the user's consent is pending."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hibali.documents import line_of_json
from hibali.errors import TryLaterError
from hibali.files import private_folder, read_regular, state_folder, write_atomic
from hibali.locks import wait_for_lock

_LINK_HOURS = 24  # the link in the e-mail is valid for this long (EBRAINS, Human Data Gateway)


class Consent:
    """The consent of one user to the terms of one dataset, which EBRAINS asks for by e-mail."""

    def __init__(self, address: str, subject: str) -> None:
        """Set the fields; `address` is the URL of the dataset, `subject` the site, which stands for its login."""
        self._address = address
        self._subject = subject
        self._granted = False

    def require(self, request_access: Callable[[], object]) -> TryLaterError:
        """Return the error of a dataset whose consent is missing; request access unless that was done lately.

        `request_access` sends the request, and raises if it fails. A request is repeated only after the link of
        the last e-mail has expired.
        """
        folder = self._folder()
        with wait_for_lock(folder):
            asked = _read_time(folder / "asked.json")
            if asked is not None and datetime.now(UTC) - asked < timedelta(hours=_LINK_HOURS):
                return self._pending(
                    f"access was requested at {asked:%Y-%m-%d %H:%M} UTC, and the link in the e-mail from EBRAINS was not opened yet"
                )
            request_access()
            record = {"schema": 1, "dataset": self._address, "at": datetime.now(UTC).isoformat()}
            write_atomic(folder / "asked.json", line_of_json(record).encode("ascii") + b"\n")
        return self._pending(
            f"hibali requested access for you, and EBRAINS sends you an e-mail with a link that is valid for {_LINK_HOURS} hours"
        )

    def note_granted(self) -> None:
        """Forget the request, because the dataset can be read now."""
        if not self._granted:
            self._granted = True
            (self._folder() / "asked.json").unlink(missing_ok=True)

    def _folder(self) -> Path:
        identity = f"{self._subject}\n{self._address}"
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        return private_folder(private_folder(state_folder() / "ebrains") / name)

    def _pending(self, message: str) -> TryLaterError:
        return TryLaterError(
            "consent-pending",
            f"the dataset is guarded: {message}",
            subject=self._subject,
            hint="Open the link in the e-mail, then run the same command again.",
            transient=False,
        )


def _read_time(path: Path) -> datetime | None:
    """Return when access was requested; None if that is not on record."""
    try:
        record = json.loads(read_regular(path))
        found = datetime.fromisoformat(record["at"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if found.tzinfo is not None else None
