"""Start a server for one test, which can be stopped with all its processes and restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.fixtures import Buckets
from tests.services.object_store import end_object_store, start_object_store
from tests.services.processes import RECORD, answers, end_all, program, start, wait_until
from tests.services.sshd import start_sshd
from tests.support.backends import Backend, BucketBackend, FolderBackend


class RestartableServer:
    """A server that serves `place`; the port stays the same after a restart."""

    def __init__(
        self,
        folder: Path,
        place: Backend,
        port: int,
        words: list[str],
        *,
        environment: dict[str, str] | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start it in the foreground with the command `words`."""
        self.place = place
        self.port = port
        self.folder = folder
        self._words = words
        self._environment = environment
        self._ready = ready

    def stop(self) -> None:
        """Stop it as a power failure does, with its connections and child processes."""
        end_all(self.folder)

    def start(self) -> None:
        """Start the same server with its data."""
        log = self.folder / "again.log"
        pid = start(self.folder, self._words, log, self._environment)
        wait_until(lambda: answers(self.port) and self._ready(), pid, log)


@contextmanager
def restartable_server(word: str, folder: Path, *, sshd: str = "") -> Iterator[RestartableServer]:
    """Start a server for a backend of kind `ssh` or `s3`; `sshd` are lines before sshd's configuration."""
    session = folder / "own"
    session.mkdir()
    try:
        yield _object_store(session) if word == "s3" else _sshd(session, folder / "ssh-root", sshd)
    finally:
        end_all(session)
        end_object_store(session)


def _sshd(session: Path, root: Path, lines: str) -> RestartableServer:
    server = start_sshd(session, session / "ssh")
    config = session / "ssh" / "sshd_config"
    words = [program("sshd", "openssh-server"), "-D", "-e", "-f", str(config)]
    own = RestartableServer(session, FolderBackend("ssh", root, server), server.port, words)
    if lines:
        config.write_text(f"{lines}\n{config.read_text()}")  # sshd uses the first line of a keyword
        own.stop()
        own.start()
    return own


def _object_store(session: Path) -> RestartableServer:
    store = start_object_store(session, session / "object-store")
    process = Path("/proc") / (session / RECORD).read_text().split()[0]
    words, environ = (
        (process / name).read_bytes().decode().split("\0")[:-1] for name in ("cmdline", "environ")
    )
    buckets = Buckets(store)
    bucket = buckets.bucket()

    def ready() -> bool:
        return _works(lambda: bucket.put("ready", b"1"))

    return RestartableServer(
        session,
        BucketBackend(buckets, bucket),
        int(store.endpoint.rpartition(":")[2]),
        words,
        environment=dict(variable.split("=", 1) for variable in environ),
        ready=ready,
    )


def _works(act: Callable[[], Any]) -> bool:
    import botocore.exceptions

    try:
        act()
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
        return False
    return True
