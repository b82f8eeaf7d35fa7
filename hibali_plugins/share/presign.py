"""Sign links to objects, with which anyone can read them until they end (AWS Signature Version 4, query parameters)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hibali.errors import AccessError, UsageError
from hibali.text import printable
from transfers.model.entry import Entry
from transfers.stores.s3.requests import Requests

if TYPE_CHECKING:
    from transfers.stores.s3.store import S3Store

LONGEST_SECONDS = 7 * 86400  # of such a signature


@dataclass(frozen=True, slots=True)
class Presigned:
    """A link to a file: the `url` is secret, because it is all that is needed; `proven` if the file was read with it alone."""

    url: str
    ends: datetime
    proven: bool

    def __repr__(self) -> str:
        return f"Presigned(ends={self.ends})"


def presign(store: S3Store, entry: Entry, seconds: int) -> Presigned:
    """Return a link to the root of a store, which is an object, after it was read with nothing but the link.

    Raises:
        UsageError: The time is longer than S3 allows.
        AccessError: There are no credentials to sign with.
    """
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as Keys

    requests, key = store.requests, store.root_path
    subject = f"{requests.subject}/{printable(key)}"
    if not 0 < seconds <= LONGEST_SECONDS:
        message = "links to objects can be valid for 1 second to 7 days"
        raise UsageError("link-too-long", message, subject=subject, hint="Use --for 7d.")
    credentials = requests.source.current()
    if credentials is None:
        raise AccessError(
            "no-credentials",
            "a link is signed with credentials, and this site has none",
            subject=subject,
            hint="If the bucket is public, its address is a link.",
        )
    now = datetime.now(UTC).replace(microsecond=0)  # signatures have whole seconds
    ends = now + timedelta(seconds=seconds)
    if credentials.expires is not None and credentials.expires < ends:
        ends = credentials.expires  # the server refuses the link from then on
    request = AWSRequest(method="GET", url=requests.endpoint.address(requests.bucket, key))
    keys = Keys(credentials.access_key, credentials.secret_key, credentials.token)
    S3SigV4QueryAuth(keys, "s3", requests.endpoint.region, expires=seconds).add_auth(request)
    url = str(request.url)
    return Presigned(url, ends, proven=_can_be_read(requests, url, entry))


def _can_be_read(requests: Requests, url: str, entry: Entry) -> bool:
    """Return whether the file can be read with the link alone: its first byte, and its size."""
    response = requests.get_presigned(url)
    total = response.headers.get("content-range", "").rpartition("/")[2]
    if response.status == 416:  # of an empty object, which has no first byte
        return entry.size == 0
    length = total if response.status == 206 else response.headers.get("content-length", "")
    return response.status in {200, 206} and length == str(entry.size)
