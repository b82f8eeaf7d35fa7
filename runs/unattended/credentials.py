"""What a schedule's sites are entered with, and until when that is good."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Literal

_NOT_AFTER = re.compile(r"^notAfter=([A-Z][a-z]{2}) +([0-9]{1,2}) ([0-9:]{8}) ([0-9]{4}) GMT$", re.MULTILINE)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_VALID = re.compile(r"^\s*Valid: from \S+ to (\S+)\s*$", re.MULTILINE)

Kind = Literal["certificate", "proxy"]


@dataclass(frozen=True, slots=True)
class Credential:
    """Something that may expire: `words` for people, `renew` is the line to type; `expires` is None where it does not."""

    site: str
    kind: Kind
    words: str
    path: str
    expires: datetime | None
    renew: str


def certificate_end(listing: str, zone: tzinfo) -> datetime | None:
    """Until when an ssh certificate is good, from `ssh-keygen -L -f`, which writes local times; None for one without an end.

    Raises ValueError where it says nothing of the kind.
    """
    found = _VALID.search(listing)
    if found is None:
        if re.search(r"^\s*Valid: (?:forever|after \S+)\s*$", listing, re.MULTILINE):
            return None
        raise ValueError("this is no certificate")
    return datetime.fromisoformat(found[1]).replace(tzinfo=zone).astimezone(UTC)


def x509_end(answer: str) -> datetime:
    """Until when an X.509 proxy or certificate is good, from `openssl x509 -noout -enddate`; raises ValueError where it says nothing of the kind."""
    found = _NOT_AFTER.search(answer)
    if found is None:
        raise ValueError("this is no certificate")
    month, day, time, year = found.groups()
    return datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02d}-{int(day):02d}T{time}+00:00")
