"""Provide the test bed of the cases: a folder, the servers, and a separate home for hibali."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.link import Link, long_link
from benchmarks.measuring import end_logins
from benchmarks.peers import REPOSITORY, find_peer
from benchmarks.samples import Amount
from benchmarks.settings import changed_settings
from benchmarks.trees import remove_tree
from tests.services.object_store import ObjectStore
from tests.services.processes import MARK, MissingPackageError, ServiceError
from tests.services.session import end_session, ensure, prepare_session
from tests.services.sshd import SshServer
from tests.services.webdav import DavServer

MEMORY = Path("/dev/shm")
HIBALI = (str(REPOSITORY / ".venv" / "bin" / "python"), "-P", "-m", "hibali_cli")
# a case or contender that raises these is not measured
MISSING_ERRORS = (LookupError, MissingPackageError, ServiceError)


class Testbed:
    """Folders and servers of one benchmark run, below `folder` (on disk) and `stores` (in memory).

    `scale` is the part of each case's full size.
    """

    def __init__(self, folder: Path, stores: Path) -> None:
        self.folder = folder
        self._stores = stores
        self.scale = 1.0
        self.work = folder / "work"
        for name in ("work", "home", "state"):
            (folder / name).mkdir(mode=0o700)
        self.sites = folder / "config.toml"
        self._sites: dict[str, str] = {}
        self._last_state = folder / "state"

    def amount(self, files: int, size: int) -> Amount:
        """Scale an amount: fewer files of the same size, or a smaller size for a single file."""
        if files == 1:
            return Amount(1, max(1, int(size * self.scale)))
        count = max(1, int(files * self.scale))
        return Amount(count, count * size)

    def environment(self, runtime: Path | None = None) -> dict[str, str]:
        """Return the environment of a contender; `runtime` is the folder of its ssh control sockets."""
        known = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        runtime = runtime or self.runtime("none")
        return {
            **known,
            "HOME": str(self.folder / "home"),
            "HIBALI_CONFIG": str(self.sites),
            "HIBALI_STATE": str(self.folder / "state"),
            "XDG_RUNTIME_DIR": str(runtime),
            "TMPDIR": str(self.work),
            MARK: f"{self.folder}/",
        }

    def state(self) -> Path:
        """Create a new state folder: of earlier runs hibali only knows which hosts accept further logins, as after a reboot."""
        folder, last = Path(tempfile.mkdtemp(prefix="state-", dir=self.folder)), self._last_state
        for mark in last.glob("logins/*/accepts-further"):
            copy = folder / mark.relative_to(last)
            copy.parent.mkdir(mode=0o700, parents=True)
            copy.touch()
        self._last_state = folder
        return folder

    def runtime(self, name: str) -> Path:
        """Create a folder for control sockets."""
        folder = self.folder / "r" / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def add_site(self, name: str, table: str) -> None:
        """Add a site to the configuration, or replace it."""
        self._sites[name] = f"[sites.{name}]\n{table}\n"
        self._write_sites()

    def add_to_site(self, name: str, lines: str) -> None:
        """Append lines to a site's configuration."""
        self._sites[name] += lines
        self._write_sites()

    def _write_sites(self) -> None:
        self.sites.write_text(self._configuration())
        self.sites.chmod(0o600)

    def _configuration(self) -> str:
        return "version = 1\n" + "".join(self._sites.values())

    def settings_of(self, argv: Sequence[str]) -> list[str]:
        """Return the settings, other than hibali's defaults, of the sites that a command names."""
        sites = tomllib.loads(self._configuration()).get("sites", {})
        used = [name for name in sites if any(word == name or word.startswith(f"{name}:") for word in argv)]
        return [each for name in used for each in changed_settings(name, sites[name])]

    def add_ssh_site(
        self, name: str, config: Path, host: str, root: Path, *, logins: int = 1, limits: str = ""
    ) -> None:
        """Add an ssh site whose default root is a local folder; `limits` are lines of its table `limits`."""
        command = json.dumps(["ssh", "-F", str(config)])
        self.add_site(
            name,
            f'kind = "ssh"\nroots = {{ data = {json.dumps(str(root))} }}\ndefault_root = "data"\n'
            f"[sites.{name}.ssh]\nhost = {json.dumps(host)}\ncommand = {command}\nlogins = {logins}\n"
            f"[sites.{name}.limits]\n{limits}\n",
        )

    def ssh(self) -> SshServer:
        """Return the sshd on loopback."""
        server: SshServer = ensure(self.folder, "ssh")
        return server

    def object_store(self) -> ObjectStore:
        """Return SeaweedFS with its objects in memory, so that disk writes do not hide the clients' costs."""
        store: ObjectStore = ensure(self._stores, "object-store")
        return store

    def swift(self) -> ObjectStore:
        """Return OpenStack Swift with its objects in memory."""
        store: ObjectStore = ensure(self._stores, "swift")
        return store

    def webdav(self) -> DavServer:
        """Return Apache with its files in memory."""
        server: DavServer = ensure(self._stores, "webdav")
        return server

    @contextlib.contextmanager
    def host(self, link: Link) -> Iterator[Path]:
        """Set up the long link and yield its ssh configuration."""
        with long_link(self.folder, link, self.ssh()) as config:
            try:
                yield config
            finally:
                end_logins(self.folder / "r")

    @contextlib.contextmanager
    def temporary_folder(self, name: str, *, memory: bool = False) -> Iterator[Path]:
        """Create a folder for one case, on disk or in memory, and remove it afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}-{name}-", dir=MEMORY)) if memory else None
        folder = folder or Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))
        try:
            yield folder
        finally:
            remove_tree(folder)


@contextlib.contextmanager
def open_testbed() -> Iterator[Testbed]:
    """Create a test bed in the temporary folder; its servers end with this process, even after a crash."""
    folder, stores = (Path(tempfile.mkdtemp(prefix="hib-", dir=where)) for where in (None, MEMORY))
    for session in (folder, stores):
        prepare_session(session)
    try:
        yield Testbed(folder, stores)
    finally:
        for session in (folder, stores):
            end_session(session)
            shutil.rmtree(session, ignore_errors=True)


def peer_or_reason(name: str) -> tuple[str, str]:
    """Return the peer's program and "", or its name and the reason why it cannot run."""
    try:
        return find_peer(name), ""
    except LookupError as problem:
        return name, str(problem)
