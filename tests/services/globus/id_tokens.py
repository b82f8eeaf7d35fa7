"""Sign identity tokens with a key that is created at first use."""

from __future__ import annotations

import functools
import json
from typing import Any


@functools.cache
def _key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import rsa  # imported late: it takes a tenth of a second

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def signed(claims: dict[str, Any]) -> str:
    """Create an id_token like Auth: signed with RS512."""
    import jwt  # imported late, too

    return jwt.encode(claims, _key(), algorithm="RS512", headers={"kid": "0"})


def jwk() -> dict[str, Any]:
    """Return the public key with which clients verify the token."""
    from jwt.algorithms import RSAAlgorithm

    document: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(_key().public_key()))
    return {**document, "alg": "RS512", "use": "sig", "kid": "0"}
