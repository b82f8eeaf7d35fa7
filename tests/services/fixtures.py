"""Provide fixtures: real servers, a private home for hibali, and hibali's command line."""

from __future__ import annotations

import functools
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from hibali import subprocesses
from tests.schemas import check_line
from tests.services.cbrain import CbrainDouble
from tests.services.docker import Docker
from tests.services.ebrains import Ebrains
from tests.services.firecrest import Firecrest
from tests.services.fork_server import Ended, ForkServer
from tests.services.fsspec_servers import CloudServer
from tests.services.globus import Globus
from tests.services.grid import Grid
from tests.services.iri import Iri
from tests.services.oar import Oar
from tests.services.object_store import ObjectStore
from tests.services.oidc import SECRET, Oidc
from tests.services.podman import Podman
from tests.services.processes import MARK, MissingPackageError, ServiceError, end_all, running_processes
from tests.services.session import REPOSITORY, end_session, ensure, new_session
from tests.services.sge import GridEngine
from tests.services.slurm import Slurm
from tests.services.slurmrestd import SlurmrestdRelay
from tests.services.sshd import SshServer
from tests.services.uftp import UftpSite
from tests.services.unicore import Unicore
from tests.services.webdav import DavServer
from tests.services.zenodo import Zenodo
from tests.support.requirements import skip_or_fail

SESSION = "HIBALI_TEST_SESSION"  # passes the session's folder to its workers
FORKS = "HIBALI_TEST_FROM_NOTHING" not in os.environ  # if set, each command starts a new interpreter
START = (sys.executable, "-P", "-m", "hibali_cli")
_DROPPED = (
    "AWS_",
    "GLOBUS_",
    "SSH_",
    "SLURM_",
    "CONTAINERS_",
    "HIBALI_",
    "XDG_",
    "S3_",
    "BOTO",
    "X509_",
    "MYPROXY_",
)


def pytest_configure(config: pytest.Config) -> None:
    """Create the session's folder in pytest's main process."""
    if not hasattr(config, "workerinput"):
        os.environ[SESSION] = str(new_session())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop all servers at the end of the session, also after failures."""
    if not hasattr(config, "workerinput"):
        end_session(Path(os.environ.pop(SESSION)))


def _session() -> Path:
    return Path(os.environ[SESSION])


def _server(name: str, *, optional: bool = False) -> Any:
    """Return the running server; if it is not installed, skip the test, or fail it where servers are required.

    With `optional`, it is never required. A server that is installed and does not start fails the test everywhere: skipped tests
    would hide it.
    """
    try:
        return ensure(_session(), name)
    except MissingPackageError as problem:
        if optional:
            pytest.skip(f"{name}: {problem}")
        skip_or_fail(f"{name}: {problem}")
    except ServiceError as problem:
        pytest.fail(f"{name}: {problem}", pytrace=False)


@pytest.fixture(scope="session")
def ssh_server() -> SshServer:
    """Return a plain sshd: `.config` for `ssh -F`, `.host`, `.home`, `.port`, `.command`, `.run(line)`."""
    return _server("ssh")


@pytest.fixture(scope="session")
def password_server() -> SshServer:
    """Return an sshd that accepts no key, so that ssh prompts for a password."""
    return _server("ssh-password")


@pytest.fixture(scope="session")
def certificate_server() -> SshServer:
    """Return an sshd that accepts only keys with a certificate of its authority."""
    return _server("ssh-certificate")


@pytest.fixture(scope="session")
def sftp_server() -> SshServer:
    """Return an sshd that allows SFTP only."""
    return _server("sftp")


@pytest.fixture(scope="session")
def other_account_sftp_server() -> SshServer:
    """Return an sshd that allows SFTP only, as the account with the uid and gid 65534."""
    return _server("sftp-other-account")


@pytest.fixture(scope="session")
def unprivileged_sftp_server() -> SshServer:
    """Return the same server, with file permissions enforced even if root runs it."""
    return _server("sftp-unprivileged")


@pytest.fixture(scope="session")
def plain_sftp_server() -> SshServer:
    """Return the same server without OpenSSH's extensions."""
    return _server("sftp-plain")


@pytest.fixture(scope="session")
def automation_node() -> SshServer:
    """Return an sshd with a forced-command wrapper that allows transfers and Slurm commands; `requested_commands` lists the requests."""
    return _server("automation-node")


@pytest.fixture(scope="session")
def automation_node_of_one_test() -> SshServer:
    """Return the same without Slurm, for the one test that counts all its requests."""
    return _server("automation-node-files")


@pytest.fixture(scope="session")
def forced_command_server() -> SshServer:
    """Return an sshd with hibali's forced command."""
    return _server("forced-command")


@pytest.fixture(scope="session")
def slurm() -> Slurm:
    """Return an sshd with Slurm, without accounting: also `.env` for local commands and `.jobcomp`, Slurm's log."""
    return _server("slurm")


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Slurm:
    """Return Slurm with slurmdbd, so that sacct works; tests with it are `heavy`."""
    return _server("slurm-accounting")


@pytest.fixture(scope="session")
def slurm_with_two_nodes() -> Slurm:
    """Return Slurm with the nodes `first` and `second`, both this machine; tests with it are `heavy`, and may end a slurmd."""
    return _server("slurm-two-nodes")


@pytest.fixture(scope="session")
def oar() -> Oar:
    """Return an sshd with OAR, for a separate account; tests with it are `heavy`."""
    return _server("oar")


@pytest.fixture(scope="session")
def sge() -> GridEngine:
    """Return an sshd with Grid Engine: also `.env` for local commands; tests with it are `heavy`."""
    return _server("sge")


@pytest.fixture(scope="session")
def pbs() -> SshServer:
    """Return an sshd with the OpenPBS of this machine, where one runs; tests with it are `heavy`."""
    return _server("pbs", optional=True)


@pytest.fixture(scope="session")
def podman() -> Podman:
    """Return Podman with private storage and `.image` loaded: `.env`, `.archive`, `.digest`, `.run(words)`."""
    return _server("podman")


@pytest.fixture(scope="session")
def docker() -> Docker:
    """Return a private Docker daemon without network and images: `.env`; tests with it are `heavy`."""
    return _server("docker")


@pytest.fixture(scope="session")
def webdav_server() -> DavServer:
    """Return Apache with mod_dav: `.url`, `.root` (the folder it serves) and `.login`."""
    return _server("webdav")


@pytest.fixture(scope="session")
def plain_webdav_server() -> DavServer:
    """Return wsgidav, which handles locks, ETags and properties differently, without a login."""
    return _server("webdav-plain")


@pytest.fixture(scope="session")
def lighttpd_server() -> DavServer:
    """Return lighttpd with mod_webdav, without a login; tests with it are `heavy`."""
    return _server("webdav-lighttpd")


@pytest.fixture(scope="session")
def grid() -> Grid:
    """Return a GridFTP server with GSI on loopback: `.url`, `.data`, `.env` with a proxy, `.make_proxy`; and MyProxy."""
    return _server("grid")


@pytest.fixture(params=["sh", "bash", "tcsh", "fish"])
def chatty_server(request: pytest.FixtureRequest) -> SshServer:
    """Return an sshd whose account has this login shell and start-up files that print on stdout and stderr."""
    return _server(f"shell-{request.param}")


@dataclass(frozen=True)
class Bucket:
    """A new bucket, and a client to inspect it."""

    name: str
    store: ObjectStore
    client: Any

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def get(self, key: str) -> bytes:
        with self.client.get_object(Bucket=self.name, Key=key)["Body"] as body:
            return body.read()

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]


@functools.cache
def _client(store: ObjectStore) -> Any:
    """Return the client of all tests of this process; to make one takes longer than most of these tests otherwise."""
    return store.client()


class Buckets:
    """An object store for one test."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.endpoint = store.endpoint
        self.access_key = store.access_key
        self.secret_key = store.secret_key
        self.other_access_key = store.other_access_key
        self.other_secret_key = store.other_secret_key
        self.region = store.region
        self.page = store.page
        self.env = store.env
        self.client = _client(store)
        self._made: list[str] = []

    def bucket(self) -> Bucket:
        """Create an empty bucket, which is removed when the test ends."""
        name = f"test-{secrets.token_hex(6)}"
        self.client.create_bucket(Bucket=name)
        self._made.append(name)
        return Bucket(name, self.store, self.client)

    def close(self) -> None:
        # other servers would need every object deleted first; their buckets are removed with the server
        for name in self._made if self.store.buckets_go_whole else ():
            self.client.delete_bucket(Bucket=name)


@pytest.fixture
def object_store() -> Iterator[Buckets]:
    """Return an S3 server: `.endpoint`, `.access_key`, `.secret_key`, `.env`, `.client`, and `.bucket()` for a new bucket."""
    buckets = Buckets(_server("object-store"))
    yield buckets
    buckets.close()


@pytest.fixture
def cbrain(tmp_path: Path) -> Iterator[CbrainDouble]:
    """Return a test double of a CBRAIN portal with the user `me`: `.url`, `.add_provider(name)`, `.fail(...)`, `.refused`."""
    portal = CbrainDouble(tmp_path / "cbrain")
    portal.add_user()
    yield portal
    portal.close()


@pytest.fixture
def zenodo() -> Iterator[Zenodo]:
    """Return a test double of Zenodo; it must have refused no request."""
    double = Zenodo()
    yield double
    double.close()
    assert double.refused == []


@pytest.fixture
def rclone_s3() -> Iterator[Buckets]:
    """Return rclone's S3 server, which checks and guarantees little; tests with it are `heavy`."""
    buckets = Buckets(_server("rclone-s3"))
    yield buckets
    buckets.close()


@pytest.fixture
def swift() -> Iterator[Buckets]:
    """Return OpenStack Swift with its S3 API; tests with it are `heavy`."""
    buckets = Buckets(_server("swift"))
    yield buckets
    buckets.close()


@pytest.fixture
def ceph() -> Iterator[Buckets]:
    """Return Ceph's RADOS gateway, if it is installed; tests with it are `heavy`."""
    buckets = Buckets(_server("ceph", optional=True))
    yield buckets
    buckets.close()


@pytest.fixture
def ebrains(object_store: Buckets, tmp_path: Path) -> Iterator[Ebrains]:
    """Return a test double of the EBRAINS data proxy before `object_store`; it must have refused no request."""
    double = Ebrains(object_store, tmp_path)
    yield double
    double.close()
    assert double.refused == []


def _with_packages(server: CloudServer, monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """Let this process and hibali's commands import the filesystem; the environment's own packages come first here."""
    monkeypatch.setenv("PYTHONPATH", server.packages, prepend=os.pathsep)
    monkeypatch.setattr(sys, "path", [*sys.path, server.packages])
    return server


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """Return an emulator of Google Cloud Storage; tests with it are `heavy`."""
    return _with_packages(_server("gcs"), monkeypatch)


@pytest.fixture
def azurite(monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """Return an emulator of Azure's blob storage; tests with it are `heavy`."""
    return _with_packages(_server("azurite", optional=True), monkeypatch)


@pytest.fixture
def xrootd(monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """Return an XRootD server; tests with it are `heavy`."""
    return _with_packages(_server("xrootd"), monkeypatch)


@pytest.fixture
def xrootd_second(monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """Return another XRootD server, which copies from the first one; tests with it are `heavy`."""
    return _with_packages(_server("xrootd-second"), monkeypatch)


@pytest.fixture
def xrootd_without_copies(monkeypatch: pytest.MonkeyPatch) -> CloudServer:
    """Return an XRootD server without third-party copies; tests with it are `heavy`."""
    return _with_packages(_server("xrootd-without-copies"), monkeypatch)


@pytest.fixture
def hdfs() -> CloudServer:
    """Return HDFS with one name node and one data node, if it is installed; tests with it are `heavy`."""
    return _server("hdfs", optional=True)


@pytest.fixture
def globus() -> Iterator[Globus]:
    """Return a test double of Globus with an empty state for this test: `.env`, `.make_collection(folder)`, `.fault(kind)`, `.tasks()`."""
    world = Globus(_server("globus").url)
    yield world
    world.close()


@dataclass(frozen=True)
class HibaliHome:
    """The folders of one test's hibali; `env` is the complete environment of its commands."""

    folder: Path
    home: Path
    state: Path
    config: Path
    runtime: Path
    env: dict[str, str]


@pytest.fixture
def hibali_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HibaliHome]:
    """Create home, state, config and runtime folders for one test, and set them in this process's environment too.

    Processes that the test's commands leave running, such as ssh masters, end with the test.
    """
    monkeypatch.setattr(subprocesses, "_in_library", False)  # the Python API sets it for the whole process
    runtime = Path(tempfile.mkdtemp(dir=_session() / "r", prefix=""))
    older = running_processes()
    folder = tmp_path / "hibali"
    home, state = folder / "home", folder / "state"
    home.mkdir(parents=True)
    state.mkdir(mode=0o700)
    for name in list(os.environ):
        if name.startswith(_DROPPED) and name != SESSION:
            monkeypatch.delenv(name)
    private = {
        "HOME": home,
        "HIBALI_STATE": state,
        "HIBALI_CONFIG": folder / "config.toml",
        "XDG_RUNTIME_DIR": runtime,
        "AWS_EC2_METADATA_DISABLED": "true",
        "GIT_CONFIG_NOSYSTEM": "1",
        "PATH": f"{REPOSITORY}/tests/services/guarded:{os.environ['PATH']}",
        "HIBALI_TEST_SPOOL": folder / "crontabs",
        MARK: f"{runtime}/",
    }
    for name, value in private.items():
        monkeypatch.setenv(name, str(value))
    env = {name: value for name, value in os.environ.items() if name != SESSION}
    yield HibaliHome(folder, home, state, folder / "config.toml", runtime, env)
    end_all(runtime, older)


def separate_home(folder: Path, session: Path) -> HibaliHome:
    """Create the same folders for commands outside of pytest; the environment has only what they need of this process's."""
    runtime = Path(tempfile.mkdtemp(dir=session / "r", prefix=""))
    home, state, config = folder / "home", folder / "state", folder / "config.toml"
    home.mkdir(parents=True)
    state.mkdir(mode=0o700)
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "SHELL")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {
        "HOME": str(home),
        "HIBALI_STATE": str(state),
        "HIBALI_CONFIG": str(config),
        "XDG_RUNTIME_DIR": str(runtime),
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONPATH": str(REPOSITORY),
        "HIBALI_TEST_SPOOL": str(folder / "crontabs"),
        MARK: f"{runtime}/",
    }
    env["PATH"] = f"{REPOSITORY}/tests/services/guarded:{env['PATH']}"
    return HibaliHome(folder, home, state, config, runtime, env)


@dataclass(frozen=True)
class Answer:
    """The result of one hibali command: its exit code, stdout and stderr as bytes, and the JSON lines of stdout."""

    exit: int
    out: bytes
    err: bytes
    command: tuple[str | bytes, ...] = ()
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, Any]:
        """Return the last JSON line: the receipt or the error."""
        assert self.lines, self
        return self.lines[-1]

    def __str__(self) -> str:
        return (
            f"{self.command} ended with {self.exit}\n"
            f"stdout: {self.out.decode(errors='backslashreplace')}\nstderr: {self.err.decode(errors='backslashreplace')}"
        )


@functools.cache
def _fork_server() -> ForkServer:
    return ForkServer()


class Hibali:
    """Run hibali as a subprocess: `hibali("push", a, b, "--json")`."""

    def __init__(self, home: HibaliHome) -> None:
        self.home = home
        self.env = dict(home.env)
        self.forks = FORKS
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(
        self,
        *words: str | bytes | Path,
        exit: int | None = None,  # noqa: A002 - the term that users know
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: Path | None = None,
        timeout: float = 120,
    ) -> Answer:
        """Run a command to its end; with `exit`, assert that exit code."""
        command = self.command(*words)
        environment = {**self.env, **(env or {})}
        folder = cwd or self.home.folder
        ended = self._fork(command, environment, folder, stdin, timeout) or subprocess.run(
            command,
            env=environment,
            input=stdin,
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=timeout,
        )
        answer = Answer(ended.returncode, ended.stdout, ended.stderr, command, _json_lines(ended.stdout))
        if exit is not None:
            assert answer.exit == exit, str(answer)
        return answer

    def _forks(self, command: Sequence[str | bytes]) -> bool:
        return self.forks and tuple(command[: len(START)]) == START

    def _fork(
        self, command: Sequence[str | bytes], env: Mapping[str, str], cwd: Path, stdin: bytes, timeout: float
    ) -> Ended | None:
        if not self._forks(command):
            return None
        return _fork_server().run(command[len(START) :], env, cwd, stdin, timeout)

    def start(
        self,
        *words: str | bytes | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        from_nothing: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a command in its own process group, so that a test can kill it; outputs go to files in the test's folder.

        It starts `from_nothing` for a signal at any moment, also at the interpreter's start.
        """
        number = len(self._running)
        with (
            (self.home.folder / f"{number}.out").open("wb") as out,
            (self.home.folder / f"{number}.err").open("wb") as err,
        ):
            command = self.command(*words)
            environment, folder = {**self.env, **(env or {})}, cwd or self.home.folder
            forked = None if from_nothing else self._fork_start(command, environment, folder, out, err)
            process = forked or subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def _fork_start(
        self, command: Sequence[str | bytes], env: Mapping[str, str], cwd: Path, out: BinaryIO, err: BinaryIO
    ) -> subprocess.Popen[bytes] | None:
        if not self._forks(command):
            return None
        return _fork_server().start(command[len(START) :], env, cwd, out.fileno(), err.fileno())

    @staticmethod
    def command(*words: str | bytes | Path) -> tuple[str | bytes, ...]:
        """Return the complete command line, which uses this interpreter's environment."""
        given = (str(word) if isinstance(word, Path) else word for word in words)
        return (*START, *given)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def hibali(hibali_home: HibaliHome) -> Iterator[Callable[..., Answer]]:
    """Return a callable that runs hibali's command line: `hibali("sites", "list", "--json", exit=0).lines`."""
    command = Hibali(hibali_home)
    command.env["PYTHONPATH"] = str(REPOSITORY)
    yield command
    command.end()


def _json_lines(out: bytes) -> list[dict[str, Any]]:
    """Parse stdout as JSON lines; return an empty list if any line is not a JSON object."""
    try:
        found = [json.loads(line) for line in out.splitlines()]
    except ValueError:
        return []
    if not all(isinstance(line, dict) for line in found):
        return []
    for line in found:
        if "kind" in line:
            check_line(line)
    return found


@pytest.fixture
def oidc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Oidc]:
    """Return a test double of an OIDC service: `.settings()` are the lines of config.toml for its client, `.accepts(token)`."""
    monkeypatch.setenv("TEST_OIDC_SECRET", SECRET)
    double = Oidc()
    yield double
    double.close()


@pytest.fixture
def firecrest(slurm: Slurm, oidc: Oidc, object_store: Buckets, tmp_path: Path) -> Iterator[Firecrest]:
    """Return a test double of FirecREST over Slurm and an object store: `.url`, `.home`, `.fail(...)`; it must have refused no request."""
    double = Firecrest(tmp_path / "firecrest", slurm, object_store)
    double.accepts = lambda token: token == double.token or oidc.accepts(token)
    yield double
    double.close()
    assert double.refused == []


@pytest.fixture
def slurmrestd(slurm: Slurm, hibali_home: HibaliHome) -> Iterator[SlurmrestdRelay]:
    """Return slurmrestd behind a relay: `.url`, `.home`, `.settings()`, `.jobs`, `.fail(...)`."""
    relay = SlurmrestdRelay(_server("slurmrestd"), slurm, hibali_home.home)
    yield relay
    relay.close()


@pytest.fixture
def slurmrestd_with_accounting(
    slurm_with_accounting: Slurm, hibali_home: HibaliHome
) -> Iterator[SlurmrestdRelay]:
    """Return the same before Slurm with slurmdbd; tests with it are `heavy`."""
    relay = SlurmrestdRelay(_server("slurmrestd-accounting"), slurm_with_accounting, hibali_home.home)
    yield relay
    relay.close()


@pytest.fixture
def iri(slurm: Slurm, oidc: Oidc, tmp_path: Path) -> Iterator[Iri]:
    """Return a test double of the IRI Facility API over Slurm: `.url`, `.home`, `.fail(...)`; it must have refused no request."""
    double = Iri(tmp_path / "iri", slurm)
    double.accepts = lambda token: token == double.token or oidc.accepts(token)
    yield double
    double.close()
    assert double.refused == []


@pytest.fixture
def unicore(slurm: Slurm, oidc: Oidc, tmp_path: Path) -> Iterator[Unicore]:
    """Return a test double of UNICORE/X over Slurm: `.url`, `.home`, `.jobs`, `.fail(...)`; it must have refused no request."""
    double = Unicore(tmp_path / "unicore", slurm)
    double.accepts = lambda token: token == double.token or oidc.accepts(token)
    yield double
    double.close()
    assert double.refused == []


@pytest.fixture
def uftp(unicore: Unicore, tmp_path: Path) -> Iterator[UftpSite]:
    """Return a UFTP server for the files of `unicore`, behind a relay: `.setting`, `.auth`, `.relay`; its auth server must have refused nothing."""
    site = UftpSite(tmp_path / "uftp", unicore)
    yield site
    site.close()
    assert site.auth.refused == []
