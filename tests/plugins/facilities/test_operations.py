"""Test what FirecREST and IRI share: archives that write files at once, names, and the records that outlive a kill."""

from __future__ import annotations

import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hibali.errors import AccessError, IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali.http.client import Bytes
from hibali_plugins.facilities.firecrest.client import _unescaped
from hibali_plugins.facilities.iri.client import _output_of, _seconds_of, _serves
from hibali_plugins.facilities.machine import failure_of
from hibali_plugins.facilities.operations.archive import Batches, archive_of, archive_of_link
from hibali_plugins.facilities.operations.base import form_of, plain_path
from transfers.stores.server.state_records import StateRecord

NAMES = st.text(
    st.characters(blacklist_characters="/\0'\\\n\r", blacklist_categories=["Cs"]), min_size=1, max_size=20
)
NAMES = NAMES.filter(lambda name: name not in {".", ".."} and len(name.encode()) < 200)


def extract(content: bytes, folder: Path) -> None:
    (folder / "archive").write_bytes(content)
    subprocess.run(["tar", "-xzf", folder / "archive", "-C", folder], check=True)
    (folder / "archive").unlink()


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=2000), min_size=1, max_size=5))
def test_gnu_tar_writes_the_files_of_an_archive(files: dict[str, bytes]) -> None:
    with Scratch() as folder:
        (folder / "data").mkdir()
        paths = {str(folder / "data" / name).encode(): content for name, content in files.items()}
        archive = archive_of(list(paths.items()), b".hibali-temporary")
        assert archive.folder == str(folder / "data").encode()
        extract(archive.content, folder / "data")
        found = {path.name: path.read_bytes() for path in (folder / "data").iterdir() if path.is_file()}
        assert found == files
        assert Path(os.fsdecode(archive.leaves)) == folder / "data" / ".hibali-temporary"


class Scratch:
    """A folder for one example."""

    def __enter__(self) -> Path:
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        return Path(self._folder.name)

    def __exit__(self, *problem: object) -> None:
        self._folder.cleanup()


def test_an_archive_has_all_contents_before_the_first_name(tmp_path: Path) -> None:
    files = [(str(tmp_path / "a" / "b" / name).encode(), name.encode()) for name in "xyz"]
    archive = archive_of([*files, (str(tmp_path / "a" / "top").encode(), b"top")], b".hibali-t")
    assert archive.folder == str(tmp_path / "a").encode()
    (tmp_path / "file").write_bytes(archive.content)
    with tarfile.open(tmp_path / "file") as members:
        kinds = [member.islnk() for member in members]
    assert kinds == [False] * 4 + [True] * 4


def test_a_file_is_replaced_and_renamed_by_links(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    archive = archive_of_link(str(tmp_path / "new").encode(), str(tmp_path / "old").encode())
    extract(archive.content, tmp_path)
    assert (tmp_path / "old").read_bytes() == b"new"
    assert (tmp_path / "old").stat().st_nlink == 2


def test_files_of_several_threads_go_together_and_each_once() -> None:
    sent: list[list[bytes]] = []

    def send(files: Sequence[tuple[bytes, Bytes]]) -> None:
        sent.append([path for path, _ in files])
        time.sleep(0.02)

    batches = Batches(send, 100)
    paths = [b"/%d" % number for number in range(40)]
    threads = [threading.Thread(target=batches.put, args=(path, b"x" * 10)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path for batch in sent for path in batch) == sorted(paths)
    assert max(map(len, sent)) <= 10
    assert len(sent) < 40


def test_every_file_of_a_failed_archive_fails() -> None:
    def send(files: Sequence[tuple[bytes, Bytes]]) -> None:
        raise TryLaterError("busy", f"{len(files)} files")

    batches = Batches(send, 100)
    failed: list[str] = []

    def put(path: bytes) -> None:
        try:
            batches.put(path, b"x")
        except TryLaterError as problem:
            failed.append(problem.code)

    threads = [threading.Thread(target=put, args=(b"/%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == ["busy"] * 8


@pytest.mark.parametrize("name", [b"it's", b"a\nb", b"a\\b", b"a\rb", b"a\0b"])
def test_names_that_a_shell_could_misread_are_refused(name: bytes) -> None:
    with pytest.raises(RefusedError) as raised:
        plain_path(b"/data/" + name, "far", "FirecREST")
    assert raised.value.code == "unsafe-name"


def test_paths_are_absolute() -> None:
    assert plain_path(b"data/$(x) `y`", "far", "FirecREST") == "/data/$(x) `y`"
    assert plain_path(b"//data", "far", "FirecREST") == "/data"


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [
        ("mkdir: cannot create directory: No space left on device", IncompleteError, "no-space"),
        ("Error: [Errno 13] Permission denied: '/x'", AccessError, "denied"),
        ("stat: cannot statx '/x': No such file or directory", NotFoundError, "vanished"),
        ("cannot access '/a/b': Not a directory", IncompleteError, "not-a-folder"),
        (
            "The provided path (/x) does not match any of the defined filesystem paths for daint.",
            AccessError,
            "denied",
        ),
        ("Error: 400: Path outside sandbox: /x", AccessError, "denied"),
        ("scancel: error: Job/step already completing or completed", NotFoundError, "vanished"),
    ],
)
def test_messages_of_failed_commands_are_understood(reason: str, kind: type[Exception], code: str) -> None:
    found = failure_of(reason, "far")
    assert isinstance(found, kind)
    assert found.code == code  # type: ignore[attr-defined]  # of HibaliError
    assert failure_of("something else", "far") is None


def test_a_form_has_the_file_as_it_is() -> None:
    body, headers = form_of("file", b"\r\n--x\0")
    boundary = headers["Content-Type"].partition("boundary=")[2].encode()
    assert body.split(b"--" + boundary)[1].partition(b"\r\n\r\n")[2] == b"\r\n--x\0\r\n"


@settings(max_examples=60, deadline=None)
@given(
    st.binary(min_size=1, max_size=30).filter(
        lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."}
    )
)
def test_escaped_names_of_ls_are_read(name: bytes) -> None:
    with Scratch() as folder:
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(b"")
        argv = ["ls", "-A", "--quoting-style=c", folder]
        out = subprocess.run(
            argv, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
        )
        text = out.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")
        assert _unescaped(text[1:-1]) == name


def test_times_with_and_without_an_offset() -> None:
    assert _seconds_of("1970-01-02T00:00:00Z") == (86400, False)
    assert _seconds_of("1970-01-02T01:00:00+01:00") == (86400, False)
    assert _seconds_of("1970-01-02 00:00:00") == (86400, True)
    assert _seconds_of("yesterday") == (0, True)


def test_results_of_tasks_in_all_forms() -> None:
    assert _output_of({"output": [1]}) == [1]
    assert _output_of('{"output": [1]}') == [1]
    assert _output_of("no JSON") == "no JSON"
    assert _output_of(None) is None


def test_resources_serve_by_endpoint_or_type() -> None:
    assert _serves({"supported_endpoints": ["compute"], "resource_type": "storage"}, "compute")
    assert not _serves({"supported_endpoints": ["compute"], "resource_type": "storage"}, "filesystem")
    assert _serves({"resource_type": "urn:doe-iri:service:storage"}, "filesystem")
    assert not _serves({"resource_type": "website"}, "compute")


def test_a_record_is_private_and_old_ones_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    old, new = (StateRecord("firecrest", "upload", "far", path) for path in (b"/old", b"/new"))
    old.write({"urls": ["https://example.org/?signature=1"]})
    [file] = (tmp_path / "firecrest").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    os.utime(file, (0, 0))
    new.write({"job": "1"})
    new.remove_old()
    assert old.read() == {}
    assert new.read() == {"job": "1"}
    new.remove()
    assert new.read() == {}
