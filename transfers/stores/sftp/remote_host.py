"""Handle files over SFTP, and run the commands that a forced command allows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from hibali import subprocesses
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from hibali.ssh.sessions import Login, open_session
from hibali.ssh_options import query_options
from hibali.text import printable
from transfers.agent import protocol
from transfers.model.entry import Entry, Kind
from transfers.model.units import Space
from transfers.remote.host import CommandResult, OnceResult, SmallFile, parse_result
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import StatusError
from transfers.stores.sftp.client import Client, entry_of, expand, kind_of, listed_names
from transfers.stores.sftp.paths import Guard, SafePaths
from transfers.stores.sftp.reading import Files

# Characters that forced-command wrappers and login shells pass on unchanged (S7).
_PLAIN_ARGUMENT = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")
_RUN_ONCE_SECONDS = 60.0
# A killed caller may have left a command in flight; after this long it cannot take effect any more.
_ON_THE_WAY_SECONDS = 60.0
_OUTPUT = 8 * 1024 * 1024
_OUTPUT_MOST = 8 * _OUTPUT  # more than `_OUTPUT` is discarded, up to this limit
_REFUSED = 255  # ssh's own exit status


class SftpHost:
    """One login at one site (transfers.remote.host.RemoteHost)."""

    def __init__(self, client: Client, login: Login, command: Sequence[str], guard: Guard) -> None:
        """Set the fields; `command` is the user's ssh command before the host, `guard` checks symlinks."""
        self._client = client
        self._guard = guard
        self._read_in: set[bytes] = set()  # folders that were checked before a read in them
        self._login = login
        self._command = tuple(command)
        self._facts: dict[str, str] | None = None

    def expand(self, path: str) -> bytes:
        """See RemoteHost; SFTP servers have no variables."""
        return expand(self._client, path.encode("utf-8", "surrogateescape"))

    def facts(self) -> dict[str, str]:
        """See RemoteHost: only what file attributes contain."""
        if self._facts is None:
            home = self._client.real_path(b".")
            facts = {"host": self._login.host, "home": printable(home), "python": "", "boot": ""}
            self._facts = {**facts, "user": self._user(), "clock": ""}
        return dict(self._facts)

    def _user(self) -> str:
        """Return the account name from ssh, because SFTP has no names."""
        return query_options(self._command, self._login.host).first("user")

    def free_space(self, path: bytes) -> Space:
        """See HasRoom."""
        return self._client.space(path)

    def stat(self, path: bytes) -> Entry | None:
        """See RemoteHost."""
        found = self._client.stat(path, follow=True)
        return None if found is None else entry_of(b"", found)

    def is_private(self, path: bytes) -> bool:
        """See RemoteHost; unknown attributes count as private."""
        self._guard.reach(path)
        found = self._client.stat(path, follow=True)
        if found is None or kind_of(found) is not Kind.FOLDER:
            return False
        return found.user in {None, 0, self._client.home_user()} and not (found.mode or 0) & 0o022

    def make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        """See RemoteHost."""
        self._guard.check_above([path])
        return self._make_folder(path, exclusive=exclusive)

    def _make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        above = path.rpartition(b"/")[0]
        if above and self._client.stat(above, follow=True) is None:
            self._make_folder(above)
        try:
            self._client.request_make_folder(path, 0o700).wait()
        except StatusError as problem:
            found = self._client.stat(path, follow=True)
            if found is None or (kind_of(found) is not Kind.FOLDER and not exclusive):
                raise self._client.error(problem, path) from None
            return False
        return True

    def put(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """See RemoteHost; durable where the server offers fsync."""
        self._guard.check_above([path])
        client = self._client
        partial = path.rpartition(b"/")[0] + b"/.hibali-" + os.urandom(16).hex().encode("ascii")
        mode = 0o700 if executable else 0o600
        flags = channel.FOR_WRITING | channel.CREATE | channel.EXCLUSIVE
        try:
            handle = client.handle_of(client.request_open(partial, flags, mode))
            written = client.request_write(handle, 0, memoryview(content))
            ended = [
                client.request_set(handle, mode=mode),
                client.request_sync(handle),
                client.request_close(handle),
            ]
            refused = client.settle([*written, *ended]) or self._rename_over(partial, path)
        except StatusError as problem:
            raise self._refusal(problem, path, len(content)) from None
        if refused is not None:
            client.settle([client.request_remove(partial)])
            raise self._refusal(refused, path, len(content))

    def _rename_over(self, old: bytes, new: bytes) -> StatusError | None:
        client = self._client
        refused = client.settle([client.request_rename(old, new)])
        if refused is not None and not client.offers(b"posix-rename@openssh.com"):
            client.settle([client.request_remove(new)])
            refused = client.settle([client.request_rename(old, new)])
        return refused

    def _refusal(self, problem: StatusError, path: bytes, size: int = 0) -> HibaliError:
        found = self._client.problem(problem, path.rpartition(b"/")[0] or b"/", size)
        if found.code == "no-space":
            return RefusedError(
                found.code, found.message, subject=f"{self._client.subject}:{printable(path)}"
            )
        return self._client.error(problem, path)

    def get(self, path: bytes, *, maximum: int = 1 << 20, offset: int = 0) -> bytes | None:
        """See RemoteHost."""
        client = self._client
        above = path.rpartition(b"/")[0]
        if above not in self._read_in:
            self._guard.check_above([path])
            self._read_in.add(above)
        found = client.stat(path)
        if found is None:
            return None
        if kind_of(found) is not Kind.FILE:
            raise IncompleteError(
                "not-a-file", "it is not a regular file", subject=f"{client.subject}:{printable(path)}"
            )
        try:
            handle = client.handle_of(client.request_open(path, channel.FOR_READING))
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE:
                return None
            raise client.error(problem, path) from None
        content = bytearray()
        try:
            while len(content) < maximum:
                size = min(client.read_bytes, maximum - len(content))
                part = client.data_of(client.request_read(handle, offset + len(content), size))
                if not part:
                    break
                content += part
        except StatusError as problem:
            raise client.error(problem, path) from None
        finally:
            client.request_close(handle)
        return bytes(content)

    def put_all(self, files: Sequence[SmallFile], folders: Sequence[bytes] = ()) -> None:
        """See RemoteHost: one after the other, because SFTP has no batch request."""
        for path in folders:
            self.make_folder(path)
        for each in files:
            self.put(each.path, each.content, executable=each.executable)

    def get_all(self, paths: Sequence[bytes], *, maximum: int = 1 << 16) -> list[bytes | None]:
        """See RemoteHost."""
        return [self._get_one(path, maximum) for path in paths]

    def _get_one(self, path: bytes, maximum: int) -> bytes | None:
        try:
            return self.get(path, maximum=maximum)
        except (IncompleteError, AccessError):
            return None

    def copy_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """See RemoteHost."""
        for source, target in pairs:
            self.copy(source, target)

    def names(self, path: bytes) -> list[bytes]:
        """See RemoteHost."""
        try:
            return sorted(one.name for one in listed_names(self._client, path))
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE:
                return []
            raise self._client.error(problem, path) from None

    def copy(self, source: bytes, target: bytes) -> None:
        """See RemoteHost: copied at the server if supported, else through this machine."""
        self._guard.check_above([source, target])
        self._copy(source, target)

    def _copy(self, source: bytes, target: bytes) -> None:
        found = self._client.stat(source)
        if found is None:
            raise NotFoundError(
                "vanished",
                "it does not exist",
                subject=f"{self._client.subject}:{printable(source)}",
            )
        try:
            if kind_of(found) is Kind.FOLDER:
                self._make_folder(target)
                for name in self.names(source):
                    self._copy(source + b"/" + name, target + b"/" + name)
            elif kind_of(found) is Kind.LINK:
                (link,) = self._client.names_of(self._client.request_readlink(source))
                self._client.request_symlink(target, link.name).wait()
            elif kind_of(found) is Kind.FILE:
                self._copy_file(source, target, (found.mode or 0) & 0o100)
        except StatusError as problem:
            raise self._refusal(problem, target) from None

    def _copy_file(self, source: bytes, target: bytes, execute: int) -> None:
        client = self._client
        flags = channel.FOR_WRITING | channel.CREATE | channel.EXCLUSIVE
        reading = client.handle_of(client.request_open(source, channel.FOR_READING))
        writing = b""
        try:
            writing = client.handle_of(client.request_open(target, flags, 0o600 | execute))
            copied = client.request_copy(reading, writing)
            if copied is not None:
                copied.wait()
            else:
                self._copy_content(reading, writing)
            closing, writing = client.request_close(writing), b""
            closing.wait()  # NFS reports a full disk or quota at the close
        finally:
            for handle in (reading, writing):
                if handle:
                    client.request_close(handle)

    def _copy_content(self, reading: bytes, writing: bytes) -> None:
        client = self._client
        offset = 0
        while part := client.data_of(client.request_read(reading, offset, client.read_bytes)):
            refused = client.settle(client.request_write(writing, offset, memoryview(part)))
            if refused is not None:
                raise refused
            offset += len(part)

    def move(self, source: bytes, target: bytes) -> None:
        """See RemoteHost."""
        self._guard.check_above([source, target])
        self._client.settle([self._client.request_move(source, target)])

    def remove_tree(self, path: bytes) -> None:
        """See RemoteHost; links are removed, not followed."""
        client = self._client
        if not path.strip(b"/"):
            raise RefusedError("unsafe-name", "refusing to remove /", subject=client.subject)
        self._guard.reach(path.rpartition(b"/")[0] or b"/", writes=True, confined=True)
        self._remove_tree(path)

    def _remove_tree(self, path: bytes) -> None:
        client = self._client
        found = client.stat(path)
        if found is None:
            return
        try:
            if kind_of(found) is Kind.FOLDER:
                for name in self.names(path):
                    self._remove_tree(path + b"/" + name)
                client.request_remove_folder(path).wait()
            else:
                client.request_remove(path).wait()
        except StatusError as problem:
            if problem.code != channel.NO_SUCH_FILE:
                raise client.error(problem, path) from None

    def run(
        self,
        argv: Sequence[bytes | str],
        *,
        stdin: bytes = b"",
        folder: bytes | None = None,
        timeout: float = 60.0,
    ) -> CommandResult:
        """See RemoteHost: runs in the account's home, ignores `folder`, and accepts plain words only.

        A wrapper that refuses prints text and exits 0, so the caller must recognize a valid reply.
        """
        del folder
        line = " ".join(_plain(argument, self._client.subject) for argument in argv)

        def started(login: Login) -> CommandResult:
            login.ensure()
            found = subprocesses.run(
                login.argv(line), stdin=stdin, timeout=timeout, most=_OUTPUT_MOST, foreground=login.asks
            )
            if found.exit_code == _REFUSED:
                raise login.explain(found.stderr)
            return CommandResult(found.exit_code, found.stdout[:_OUTPUT], found.stderr)

        return open_session(self._login, started)

    def run_once(
        self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None
    ) -> OnceResult:
        """See RemoteHost. No remote process records the reply, so a lost reply stays unknown."""
        for argument in argv:
            _plain(argument, self._client.subject)
        result_file = marker + b"/answer.json"
        if self.make_folder(marker, exclusive=True):
            try:
                finished = self.run(argv, folder=folder, timeout=_RUN_ONCE_SECONDS)
            except TryLaterError:
                return OnceResult(fresh=True, finished=None, age_seconds=0.0)
            self.put(result_file, json.dumps(_record(finished)).encode("ascii"))
            return OnceResult(fresh=True, finished=finished, age_seconds=0.0)
        known = self.get(result_file)
        age = self._age(marker) - _ON_THE_WAY_SECONDS
        return OnceResult(
            fresh=False, finished=parse_result(known) if known else None, age_seconds=max(0.0, age)
        )

    def _age(self, marker: bytes) -> float:
        """Return the marker's age in seconds, by the remote filesystem's clock (that of a new file)."""
        probe = marker.rpartition(b"/")[0] + b"/.hibali-" + os.urandom(16).hex().encode("ascii")
        self.put(probe, b"")
        now, made = self._client.stat(probe), self._client.stat(marker)
        self._client.settle([self._client.request_remove(probe)])
        if now is None or made is None:
            return 0.0
        return float((now.seconds or 0) - (made.seconds or 0))

    def digest(self, path: bytes) -> str:
        """See RemoteHost: this machine reads the whole file."""
        files = Files(self._client, SafePaths(self._client, b"/"))
        ((digest, problem),) = files.hash_all([self._client.real_path(path).lstrip(b"/")])
        if digest is None:
            found = problem.message if problem else "the site sent no digest"
            raise NotFoundError("no-digest", found, subject=f"{self._client.subject}:{printable(path)}")
        return digest

    def close(self) -> None:
        """See RemoteHost."""
        self._client.close()


def _plain(argument: bytes | str, subject: str) -> str:
    """Return a word that no shell expands. Raise `UsageError` for any other."""
    text = argument if isinstance(argument, str) else argument.decode("utf-8", "replace")
    if not _PLAIN_ARGUMENT.fullmatch(text):
        raise UsageError(
            "unsafe-word",
            "without an agent, the arguments of a command may contain only letters, digits and _./:=@%+,-",
            subject=f"{subject}:{printable(text)}",
            hint="Choose a work folder for the site whose path has no other characters.",
        )
    return text


def _record(finished: CommandResult) -> dict[str, Any]:
    """Return the agent's format, so that either can read the other's record."""
    return {
        "exit": finished.exit_code,
        "stdout": protocol.text_of(finished.stdout),
        "stderr": protocol.text_of(finished.stderr),
    }
