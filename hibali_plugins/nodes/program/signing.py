"""Sign S3 requests with keys that are valid for one day and one region each (AWS Signature Version 4).

A node gets these derived keys, never the secret key that they come from.
"""

import hashlib
import hmac
from typing import Dict, Mapping, Optional, Tuple
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
_SERVICE = "s3"


def derive_key(secret: str, day: str, region: str) -> str:
    """Return the signing key of a day (`YYYYMMDD`, UTC) in hexadecimal."""
    key = ("AWS4" + secret).encode("utf-8")
    for part in (day, region, _SERVICE, "aws4_request"):
        key = _hmac(key, part)
    return key.hex()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode("utf-8"), hashlib.sha256).digest()


def encode_query(query: Mapping[str, str]) -> str:
    """Return a query string in canonical order."""
    return "&".join(
        "{}={}".format(quote(name, safe="~"), quote(query[name], safe="~")) for name in sorted(query)
    )


class Signer(object):
    """The keys of several days for one region."""

    def __init__(self, access_key: str, keys: Mapping[str, str], region: str, token: Optional[str]) -> None:
        """`keys` are those of `derive_key` by day; `token` is that of temporary credentials."""
        self._access_key = access_key
        self._keys = {day: bytes.fromhex(key) for day, key in keys.items()}
        self._region = region
        self._token = token

    def sign(
        self, request: Tuple[str, str, str], headers: Mapping[str, str], digest: str, stamp: str
    ) -> Dict[str, str]:
        """Return all headers of a request with its signature.

        Args:
            request: method, encoded path and canonical query.
            headers: must contain `host`; names in lower case.
            digest: the sha256 of the body in hexadecimal.
            stamp: the time, as `YYYYMMDDTHHMMSSZ`.

        Raises:
            KeyError: no key is valid on that day.
        """
        whole = dict(headers)
        whole["x-amz-date"] = stamp
        whole["x-amz-content-sha256"] = digest
        if self._token:
            whole["x-amz-security-token"] = self._token
        signed = sorted(name for name in whole if name == "host" or name.startswith("x-amz-"))
        names = ";".join(signed)
        canonical = "\n".join(
            [
                *request,
                *("{}:{}".format(name, " ".join(whole[name].split())) for name in signed),
                "",
                names,
                digest,
            ]
        )
        day = stamp[:8]
        scope = "{}/{}/{}/aws4_request".format(day, self._region, _SERVICE)
        text = "\n".join((ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode("utf-8")).hexdigest()))
        whole["authorization"] = (
            f"{ALGORITHM} Credential={self._access_key}/{scope}, SignedHeaders={names}, Signature={_hmac(self._keys[day], text).hex()}"
        )
        return whole
