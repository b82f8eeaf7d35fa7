"""Make botocore clients for tests."""

from __future__ import annotations

import functools
from typing import Any

import botocore.config
import botocore.session


@functools.cache
def _session() -> botocore.session.Session:
    """Return the one session of this process: a session, and its descriptions of services, take longer than a client otherwise."""
    return botocore.session.Session()


def make_client(store: Any, endpoint: str, **options: Any) -> Any:
    """Return a client of an object store at one of its addresses; `options` are those of botocore's `Config`."""
    return _session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        config=botocore.config.Config(s3={"addressing_style": "path"}, **options),
    )


def signing_client(store: Any, endpoint: str) -> Any:
    """Return a client that signs URLs below `endpoint`; its host is part of the signature."""
    return make_client(store, endpoint, signature_version="s3v4")
