"""The double's own key, made when first used, and the identity tokens it signs."""

from __future__ import annotations

import functools
import json
from typing import Any


@functools.cache
def _key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import rsa  # it costs a tenth of a second

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def signed(claims: dict[str, Any]) -> str:
    """An id_token as Auth makes it: RS512."""
    import jwt  # and so does this

    return jwt.encode(claims, _key(), algorithm="RS512", headers={"kid": "0"})


def jwk() -> dict[str, Any]:
    """The public key by which a client checks it."""
    from jwt.algorithms import RSAAlgorithm

    document: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(_key().public_key()))
    return {**document, "alg": "RS512", "use": "sig", "kid": "0"}
