"""Test what the store of a CBRAIN portal decides: settings, names, types, descriptions, archives and paths."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import SettingsError, parse_settings
from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.locations import parse_location, read_location
from hibali_plugins.cbrain import archive as archives
from hibali_plugins.cbrain.archive import CollectionArchive
from hibali_plugins.cbrain.contents import WHOLE_BYTES, Contents
from hibali_plugins.cbrain.described import described, description_of, entry_of
from hibali_plugins.cbrain.errors import reason_in
from hibali_plugins.cbrain.names import LEGAL_NAME, guess_type
from hibali_plugins.cbrain.portal import Portal
from hibali_plugins.cbrain.records import Userfile, read_record
from hibali_plugins.cbrain.store import PortalStore
from transfers.model.entry import Entry, Kind
from transfers.model.facts import name_problem

URL = 'url = "https://portal.example"\n'


def settings_of(text: str) -> Any:
    found = parse_settings(f'[sites.lab]\nkind = "cbrain"\n[sites.lab.cbrain]\n{text}', Path("config.toml"))
    return found.site("lab").own


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "needs url"),
        ('url = "ftp://x"', "must be a URL that starts with https://"),
        ('url = "http://portal.example"', "must start with https://, except for this machine"),
        ('url = "https://me:x@portal.example"', "must not contain a login"),
        (URL + 'token_command = ["a"]\npassword_command = ["b"]\nlogin = "me"', "only one of"),
        (URL + 'password_command = ["b"]', "needs login"),
        (URL + 'token_keyring = "b"', "needs login"),
        (URL + 'type = "text file"', "a type such as TextFile"),
        (URL + 'providers = { "a b" = "x:y" }', "not the name of a data provider"),
        (URL + 'providers = { lab = "/data" }', "is not SITE:PATH"),
        (URL + 'password = "secret"', "secrets are not allowed here"),
    ],
)
def test_wrong_settings_are_named(text: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(text)
    assert reason in caught.value.message


def test_settings_have_defaults() -> None:
    found = settings_of(URL.replace("example", "example/"))
    assert (found.url, found.copy_seconds, found.providers) == ("https://portal.example", 600.0, {})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "TextFile"),
        ("sub-01_T1w.nii.gz", "NiftiFile"),
        ("SCAN.NII", "NiftiFile"),
        ("data.tar.gz", "TarArchive"),
        ("README", "SingleFile"),
        ("x.mnc", "MincFile"),
    ],
)
def test_types_are_guessed_from_names(name: str, kind: str) -> None:
    assert guess_type(name) == kind


@pytest.mark.parametrize("name", ["a", "0-9", "sub-01_task=rest.nii.gz", "a,b(c)[d]{e}~!@#%^+:?", "x" * 250])
def test_legal_names(name: str) -> None:
    assert LEGAL_NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b", "a\n", "a$b", "a'b", 'a"b', "é", "x" * 251])
def test_names_that_a_portal_refuses(name: str) -> None:
    assert not LEGAL_NAME.fullmatch(name)


def userfile_of(**more: Any) -> Userfile:
    given = {"id": 7, "name": "a.txt", "data_provider_id": 3, "type": "TextFile", "size": 3, **more}
    return read_record(Userfile, given, "lab")


@pytest.mark.parametrize(
    ("kind", "files", "is_collection"),
    [
        ("TextFile", 1, False),
        ("TextFile", 2, False),
        ("TarArchive", None, False),
        ("FileCollection", 1, True),
        ("BidsDataset", None, True),
        ("CivetOutput", None, True),
        ("SomethingNew", 5, True),
        ("SomethingNew", 1, False),
    ],
)
def test_collections_are_told_by_their_types(kind: str, files: int | None, is_collection: bool) -> None:
    assert userfile_of(type=kind, num_files=files).is_collection is is_collection


def test_flags_and_nulls_of_records_are_understood() -> None:
    found = userfile_of(size=None, hidden="false", description=None, unknown={"x": 1})
    assert (found.size, found.description) == (None, "")
    with pytest.raises(HibaliError):
        userfile_of(name="\ud800")


DIGEST = "ab" * 32


def test_descriptions_record_a_file_beside_other_text() -> None:
    entry = Entry(b"a.txt", Kind.FILE, 3, 1_700_000_000_123_456_789, 0o100755 & 0o777)
    text = description_of(entry, DIGEST, "A scan.\nOf me.")
    assert text.startswith("A scan.\nOf me.\nhibali: sha256=")
    found = userfile_of(description=text)
    assert described(found) == (DIGEST, entry.mtime_ns, 0o755)
    assert entry_of(b"a.txt", found) == entry._replace(etag="7-3", digest=DIGEST)
    again = description_of(entry._replace(mtime_ns=5), DIGEST, text)
    assert again.count("hibali:") == 1
    assert described(userfile_of(description=again, size=4)) is None


def test_a_file_without_a_record_has_no_time_and_no_digest() -> None:
    assert entry_of(b"a", userfile_of(description="hello")) == Entry(b"a", Kind.FILE, 3, etag="7-3")
    assert entry_of(b"a", userfile_of(size=None)).size == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"notice": "Name has already been taken.\\n"}', "Name has already been taken."),
        (b'{"base": ["is wrong", "is old"], "x": 1}', "base is wrong, is old"),
        (b'{"error": null}', ""),
        (b"<html>", ""),
        (b"Some license agreements are not signed.", "Some license agreements are not signed."),
        (b'["\\u001b[31mred"]', ""),
        (b'"\\u001b[31mred"', "\\x1b[31mred"),
        (b'"' + b"x" * 1000 + b'"', "x" * 300 + " ..."),
    ],
)
def test_reasons_of_errors_are_short_and_printable(body: bytes, reason: str) -> None:
    assert reason_in(body) == reason


# Archives


class Sender:
    """A client that sends one archive."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.attempts = 0

    def receive_archive(
        self, number: int, receive: Callable[[bytes], object], *, limit: int, restart: Callable[[], None]
    ) -> None:
        del number, limit
        for half in (False, True):  # a first attempt that breaks off
            restart()
            content = self.content if half else self.content[: len(self.content) // 2]
            for start in range(0, len(content), 1000):
                receive(content[start : start + 1000])
            self.attempts += 1


def packed(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.name = name
            body = content if isinstance(content, bytes) else b""
            if isinstance(content, bytes):
                member.size = len(content)
            archive.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo()
    made.type, made.linkname = kind, target
    return made


def received(content: bytes) -> CollectionArchive:
    client: Any = Sender(content)
    return CollectionArchive(client, userfile_of(name="study", type="FileCollection"))


def test_an_archive_is_read_by_path() -> None:
    archive = received(
        packed(
            {
                "study": special(tarfile.DIRTYPE),
                "study/b/x": b"12345",
                "study/a": b"1" * 5000,
                "study/same": special(tarfile.LNKTYPE, "study/a"),
                "study/link": special(tarfile.SYMTYPE, "../../etc/passwd"),
                "study/pipe": special(tarfile.FIFOTYPE),
            }
        )
    )
    found = {entry.path: entry.kind for entry in archive.entries()}
    assert found == {
        b"a": Kind.FILE,
        b"b": Kind.FOLDER,
        b"b/x": Kind.FILE,
        b"link": Kind.LINK,
        b"pipe": Kind.SPECIAL,
        b"same": Kind.FILE,
    }
    assert archive.read(b"b/x", 1, 3) == (b"234", 5)
    assert archive.read(b"same", 4990, None) == (b"1" * 10, 5000)
    with pytest.raises(HibaliError):
        archive.read(b"link", 0, None)
    archive.close()


@pytest.mark.parametrize("name", ["other/a", "study/../a", "/study/a", "study//a", "study/./a", "../study/a"])
def test_names_outside_of_the_collection_are_refused(name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        received(packed({name: b"x"}))
    assert caught.value.code == "unsafe-name"


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", packed({"study/a": b"x" * 9000})[:-20], gzip.compress(b"x" * 2000)],
    ids=["empty", "text", "cut off", "no tar"],  # their bytes have the time
)
def test_damaged_archives_are_named(content: bytes) -> None:
    with pytest.raises(HibaliError) as caught:
        received(content)
    assert caught.value.code == "bad-answer"


def test_a_small_archive_of_very_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_BYTES", 1_000_000)
    with pytest.raises(RefusedError) as caught:
        received(packed({"study/a": bytes(2_000_000)}))
    assert caught.value.code == "too-large"


# Contents


class ContentSender:
    """A client that sends the content of userfiles, and counts how often."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.sent = 0

    def receive_content(
        self, number: int, receive: Callable[[bytes], object], *, limit: int, restart: Callable[[], None]
    ) -> None:
        del number, limit
        restart()
        self.sent += 1
        receive(self.content)


def test_a_large_file_is_received_once_for_all_its_pieces() -> None:
    content = bytes(range(256)) * 40_000
    sender: Any = ContentSender(content)
    contents = Contents(sender)
    userfile = userfile_of(size=len(content))
    pieces = [
        contents.read(userfile, offset, WHOLE_BYTES, len(content))[0]
        for offset in range(0, len(content), WHOLE_BYTES)
    ]
    assert (b"".join(pieces), sender.sent) == (content, 1)
    contents.read(userfile, 0, 10, len(content))
    assert sender.sent == 2  # it was forgotten after its last byte
    contents.close()


def test_a_file_that_grew_is_not_returned() -> None:
    sender: Any = ContentSender(b"abcdef")
    contents = Contents(sender)
    with pytest.raises(HibaliError) as caught:
        contents.read(userfile_of(), 0, None, 3)
    assert caught.value.code == "source-changed"


# Paths


def location_of(path: str, providers: str = "") -> Any:
    text = (
        f'[sites.lab]\nkind = "cbrain"\n[sites.lab.cbrain]\n{URL}{providers}\n'
        '[sites.bucket]\nkind = "s3"\n[sites.bucket.s3]\nendpoint = "aws"\nbucket = "b"\n'
    )
    settings = parse_settings(text, Path("config.toml"))
    return read_location(path, settings)


def test_a_path_leads_to_where_its_provider_stores_files() -> None:
    providers = 'providers = { mine = "bucket:cbrain/lab", whole = "bucket:" }'
    found = location_of("lab:@mine/sub/x", providers)
    assert (found.through.site.name, found.through.path) == ("bucket", "cbrain/lab/sub/x")
    assert location_of("lab:@mine", providers).through.path == "cbrain/lab"
    assert location_of("lab:@whole/a", providers).through.path == "a"
    assert location_of("lab:@other/a", providers).through is None
    assert found.parent.through.path == "cbrain/lab/sub"
    assert found.parent.parent.parent.through is None
    assert found.child(b"y").through.path == "cbrain/lab/sub/x/y"
    with pytest.raises(HibaliError):
        location_of("lab:@mine", 'providers = { mine = "lab:@other" }')


def store_at(root: bytes) -> PortalStore:
    site = location_of("lab:").site
    client: Any = None
    return PortalStore(Portal(client, site), root)


@pytest.mark.parametrize(
    ("root", "name", "fits"),
    [
        (b"@lab", b"a.txt", True),
        (b"@lab", b"sub/a.txt", False),
        (b"@lab", b"a b", False),
        (b"@lab/sub", b"a.txt", False),
        (b"", b"@lab/a.txt", True),
        (b"", b"a.txt", False),
        (b"", b"@lab", False),
    ],
)
def test_names_fit_below_a_provider_only(root: bytes, name: bytes, fits: bool) -> None:
    assert (name_problem(name, store_at(root).facts) is None) is fits


def test_a_path_without_a_provider_is_named() -> None:
    with pytest.raises(NotFoundError) as caught:
        store_at(b"data").stat()
    assert (caught.value.code, caught.value.hint) == (
        "no-such-provider",
        "To see what exists: hibali ls lab:",
    )


def test_paths_at_a_portal_are_keys() -> None:
    sites = {"lab": location_of("lab:").site}
    found = parse_location("lab:@p/x", sites, b"/")
    assert found is not None
    assert (found.path, found.slash) == ("@p/x", False)
