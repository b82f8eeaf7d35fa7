"""Copy a folder to a bucket or back with s3transfer's client in C (awscrt), which has no command of its own.

A peer runs it in its own environment: `python crt_copy.py up|down FOLDER ENDPOINT REGION BUCKET PREFIX`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
from s3transfer import crt  # type: ignore[import-untyped]


def main() -> None:
    """Copy, with one transfer for each file and as many at a time as the client likes."""
    direction, folder, endpoint, region, bucket, prefix = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    session = botocore.session.get_session()
    place = {"region_name": region, "endpoint_url": endpoint}
    provider = crt.BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    client = crt.create_s3_crt_client(region, provider, use_ssl=endpoint.startswith("https"))
    with crt.CRTTransferManager(client, crt.BotocoreCRTRequestSerializer(session, dict(place))) as transfers:
        start = _upload if direction == "up" else _download
        for future in list(start(transfers, session.create_client("s3", **place), folder, bucket, prefix)):
            future.result()


def _upload(transfers: Any, _: Any, folder: Path, bucket: str, prefix: str) -> Iterator[Any]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield transfers.upload(str(path), bucket, f"{prefix}/{path.relative_to(folder)}")


def _download(transfers: Any, client: Any, folder: Path, bucket: str, prefix: str) -> Iterator[Any]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for found in page.get("Contents", ()):
            path = folder / found["Key"][len(prefix) + 1 :]
            path.parent.mkdir(parents=True, exist_ok=True)
            yield transfers.download(bucket, found["Key"], str(path))


main()
