"""Test fsspec sites without servers: settings, secrets, errors, and filesystems that allow less than others."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from hibali.config.settings import SettingsError, load_sites, parse_settings
from hibali.errors import AccessError, HibaliError, RefusedError, TryLaterError, UsageError
from hibali.locations import read_location
from hibali_plugins.fsspec_sites.errors import error_for
from hibali_plugins.fsspec_sites.files import FsspecFiles, found_of, time_of
from hibali_plugins.fsspec_sites.options import options_of, read_options
from hibali_plugins.fsspec_sites.settings import FsspecSettings
from tests.support.payloads import put
from transfers.model.entry import Kind, Verification
from transfers.model.store import Store
from transfers.stores.open_store import open_store
from transfers.stores.server.files import Exclusive, Files, Put
from transfers.stores.server.filesystem import probe_filesystem
from transfers.stores.server.locks import FileLock

MIB = 1 << 20


def settings_of(text: str) -> FsspecSettings:
    found = parse_settings(
        f'version = 1\n[sites.lake]\nkind = "fsspec"\n[sites.lake.fsspec]\n{text}\n', Path("config.toml")
    )
    own: FsspecSettings = found.sites["lake"].own
    return own


class _FolderLocks(FsspecFiles):
    """A filesystem that is probed and locked by the creation of a folder, as that of a plugin may be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalFileSystem(), str(folder), "lake", "file")
        self.traits = replace(self.traits, exclusive=Exclusive.FOLDER)
        self._folder = folder

    create = Files.create  # a filesystem whose locks are folders need not have it

    def claim_folder(self, path: bytes) -> bool:
        try:
            (self._folder / os.fsdecode(path)).mkdir()
        except FileExistsError:
            return False
        return True


def test_a_character_is_not_refused_because_of_another_one(tmp_path: Path) -> None:
    """`?` and `#` are probed together, too, unless `?` alone is refused."""
    files = FsspecFiles(LocalFileSystem(), str(tmp_path), "lake", "file")
    files.traits = replace(files.traits, refuses=b"?")
    assert probe_filesystem(files, b"").refuses == ("?",)


def test_a_probed_filesystem_can_lock_by_folders(tmp_path: Path) -> None:
    """The probe finds it, leaves nothing, and a second client is refused."""
    files = _FolderLocks(tmp_path)
    assert probe_filesystem(files, b"").exclusive == Exclusive.FOLDER
    assert list(tmp_path.iterdir()) == []
    lock = FileLock(files, b"", "first", Exclusive.FOLDER)
    with pytest.raises(TryLaterError) as raised:
        FileLock(files, b"", "second", Exclusive.FOLDER)
    assert raised.value.code == "locked"
    lock.release()
    FileLock(files, b"", "second", Exclusive.FOLDER).release()


@pytest.mark.parametrize(
    "text",
    [
        'url = "study/raw"',
        'url = "https://example.org/x"',
        'url = "simplecache::gs://study"',
        'url = "simplecache://study"',
        'url = "reference://study"',
        'url = "hibali://lake/x"',
        'url = "sftp://me:planted@host/x"',
        'url = "gs://study?x=1"',
        'url = "file://relative"',
        'url = "gs://study/../other"',
        'url = "gs://study"\noptions = { token = "planted" }',
        'url = "s3://study"\noptions = { secret = "planted" }',
        'url = "s3://study"\noptions = { client_kwargs = { aws_secret_access_key = "planted" } }',
        'url = "s3://study"\noptions = { endpoint_url = "http://s3.example.org" }',
        'url = "abfs://study"\noptions = { connection_string = "planted" }',
        'url = "abfs://study"\nsecret_variables = { account_key = "not a name" }',
        'url = "abfs://x"\nsecret_variables = { key = "A" }\nsecret_keyrings = { key = "b" }',
        'url = "webhdfs://nn.example.org:9870/x"\nsecret_variables = { token = "TOKEN" }',
    ],
)
def test_unsafe_settings_are_refused(text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings_of(text)
    assert "planted" not in str(raised.value)


def test_settings_of_known_filesystems_are_accepted() -> None:
    assert settings_of('url = "gs://study/"\noptions = { token = "google_default" }').url == "gs://study"
    assert settings_of('url = "abfs://c@account.dfs.core.windows.net/x"').protocol == "abfs"
    assert settings_of('url = "webhdfs://nn:9870/x"\noptions = { user = "me" }').options == {"user": "me"}
    secure = 'options = { use_https = true }\nsecret_variables = { token = "TOKEN" }'
    assert settings_of(f'url = "webhdfs://nn.example.org:9870/x"\n{secure}').has_secrets


def test_secrets_come_from_variables_and_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_KEY", "planted-1")
    command = """["printf", '%s', '{"sas_token": "planted-2"}']"""
    own = settings_of(
        'url = "abfs://study"\noptions = { account_name = "brain" }\n'
        f'secret_variables = {{ account_key = "LAKE_KEY" }}\ncredentials_command = {command}'
    )
    assert options_of(own, "lake") == {
        "account_name": "brain",
        "account_key": "planted-1",
        "sas_token": "planted-2",
    }
    with pytest.raises(AccessError) as raised:
        options_of(settings_of('url = "gs://x"\nsecret_variables = { token = "LAKE_NONE" }'), "lake")
    assert raised.value.code == "no-secret"


@pytest.mark.parametrize("text", [b"planted", b"[]", b"{}", b'{"not a name": 1}', b"[" * 100_000])
def test_the_output_of_a_command_is_never_repeated(text: bytes) -> None:
    with pytest.raises(ValueError, match="its output") as raised:
        read_options(text)
    assert "planted" not in str(raised.value)


class _HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("planted")
        self.status = status


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (FileNotFoundError("planted"), "vanished"),
        (NotADirectoryError("planted"), "vanished"),
        (PermissionError("planted"), "denied"),
        (_HttpError(403), "denied"),
        (_HttpError(404), "vanished"),
        (_HttpError(503), "busy"),
        (_HttpError(507), "no-space"),
        (OSError(errno.ENOSPC, "planted"), "no-space"),
        (ConnectionResetError("planted"), "unreachable"),
        (TimeoutError("planted"), "unreachable"),
        (NotImplementedError("planted"), "not-supported"),
        (ValueError("planted"), "refused-by-server"),
        (type("DefaultCredentialsError", (Exception,), {})("planted"), "no-credentials"),
    ],
)
def test_errors_have_a_code_and_not_the_text_of_the_exception(problem: Exception, code: str) -> None:
    found = error_for(problem, "lake")
    assert (found.code, found.subject) == (code, "lake")
    assert "planted" not in f"{found.message} {found.hint}"
    wrapped = RuntimeError("planted")
    wrapped.__cause__ = problem
    assert error_for(wrapped, "lake").code == code


def test_times_and_tags_are_read_from_each_implementation() -> None:
    second = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    expected = int(second.timestamp()) * 1_000_000_000
    assert [time_of(value) for value in (second, second.timestamp(), int(second.timestamp() * 1000))] == (
        [expected] * 3
    )
    assert [time_of(value) for value in ("2026-01-02T03:04:05Z", "never", None, True)] == [expected, 0, 0, 0]
    assert found_of({"type": "file", "size": 3, "ETag": '"abc"'}).tag == "abc"
    assert found_of({"type": "file", "size": 3, "mtime": second, "ino": 7}).tag == f"@{expected}.7"
    assert found_of({"type": "file", "size": None}).size == -1
    assert found_of({"type": "directory"}).folder
    assert found_of({"type": "file", "islink": True, "destination": "x"}).kind is Kind.LINK
    assert found_of({"type": "other"}).kind is Kind.SPECIAL


def test_a_call_that_hangs_ends_at_its_deadline() -> None:
    import threading

    released = threading.Event()
    files = FsspecFiles(object(), "/", "lake", "memory")
    try:
        with pytest.raises(TryLaterError) as raised:
            files.call(lambda _: released.wait(), seconds=0.05)
    finally:
        released.set()
    assert raised.value.code == "answer-too-slow"


class HdfsLike(LocalFileSystem):
    """The local filesystem with HDFS's rename, which does nothing and reports no error if the name exists.

    A double: the real one (tests/contracts, `fsspec-webhdfs`) is too large for every run of the tests.
    """

    protocol = "hdfslike"

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        del kwargs
        if not Path(self._strip_protocol(path2)).exists():
            shutil.move(self._strip_protocol(path1), self._strip_protocol(path2))


class Halfway(LocalFileSystem):
    """A filesystem without a rename of its own, whose files are seen while they are written."""

    protocol = "halfway"
    mv = fsspec.AbstractFileSystem.mv


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for kind in (HdfsLike, Halfway):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    return


def store_of(hibali_home: Any, protocol: str, folder: Path) -> Store:
    folder.mkdir(exist_ok=True)
    hibali_home.config.write_text(
        f'version = 1\n[sites.lake]\nkind = "fsspec"\n[sites.lake.fsspec]\nurl = "{protocol}://{folder}"\n'
    )
    hibali_home.config.chmod(0o600)
    return open_store(read_location("lake:data", load_sites(str(hibali_home.config))))


def test_a_rename_that_does_not_replace_is_used_for_files_and_locks(hibali_home: Any, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    first, second = (store_of(hibali_home, "hdfslike", folder) for _ in range(2))
    large = bytes(range(256)) * (20 * MIB // 256)
    for content in (b"old", large, b"new"):
        (answer,) = put(first, {b"sub/file": content})
        assert (answer.problem, answer.verification) == (None, Verification.DIGEST)
        assert (folder / "data/sub/file").read_bytes() == content
    assert (first.facts.swaps, first.facts.locks) == (False, True)
    lock = first.lock("the first push")
    with pytest.raises(TryLaterError) as raised:
        second.lock("the second push")
    assert raised.value.code == "locked"
    lock.release()
    names = {str(path.relative_to(folder / "data")) for path in (folder / "data").rglob("*")}
    assert names == {"sub", "sub/file", ".hibali", ".hibali/manifest.jsonl"}
    for store in (first, second):
        store.close()


def test_a_filesystem_that_shows_half_files_is_only_read(hibali_home: Any, tmp_path: Path) -> None:
    store = store_of(hibali_home, "halfway", tmp_path / "root")
    with pytest.raises(RefusedError) as raised:
        put(store, {b"file": b"content"})
    assert raised.value.code == "read-only-site"
    assert [entry for entry in store.list() if entry.kind is Kind.FILE] == []
    store.close()


def test_missing_packages_and_protocols_are_named(hibali_home: Any, tmp_path: Path) -> None:
    for protocol, code, hint in (
        ("smb", "missing-package", "pip install"),
        ("nothing", "unknown-protocol", "Install"),
    ):
        with pytest.raises(UsageError) as raised:
            store_of(hibali_home, protocol, tmp_path / "root")
        assert raised.value.code == code
        assert hint in raised.value.hint


def test_options_of_no_filesystem_are_an_error_without_values(hibali_home: Any) -> None:
    hibali_home.config.write_text(
        'version = 1\n[sites.lake]\nkind = "fsspec"\n[sites.lake.fsspec]\nurl = "webhdfs://localhost:1/x"\n'
        'options = { user = "planted", kerberos = true }\n'
    )
    hibali_home.config.chmod(0o600)
    with pytest.raises(HibaliError) as raised:
        open_store(read_location("lake:x", load_sites(str(hibali_home.config))))
    assert raised.value.code == "bad-options"
    assert "planted" not in f"{raised.value.message} {raised.value.hint} {raised.value.__context__}"


def test_puts_are_declared_for_each_known_protocol() -> None:
    from hibali_plugins.fsspec_sites.protocols import known_protocol

    assert {known_protocol(word).put for word in ("gs", "abfs", "s3")} == {Put.STREAMED}
    assert known_protocol("webhdfs").put is Put.RENAMED
    assert known_protocol("anything").put is Put.UNKNOWN


class ClientPayloadError(Exception):
    """As aiohttp raises it."""


class IncompleteReadError(Exception):
    """As botocore raises it."""


@pytest.mark.parametrize("kind", [ClientPayloadError, IncompleteReadError])
def test_an_answer_that_broke_off_is_named(kind: type[Exception]) -> None:
    assert error_for(kind("x"), "lake").code == "connection-lost"
