"""Test untrusted bundles: errors are found in bounded memory, before anything is used."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import RefusedError
from hibali_plugins.bundles.archive import LONGEST, Archive, ArchiveWriter, is_member, member_of, path_of
from hibali_plugins.bundles.compare import OutputResult, compare_outputs
from hibali_plugins.bundles.read import check_contents, read_bundle, unpack
from registry.descriptor import read_descriptor
from tests.end_to_end.run_tools import DESCRIPTOR

RAW = json.dumps(DESCRIPTOR).encode()
INPUT = b"hello\n"
RUN = {"id": "r", "site": "s", "scheduler": "direct", "container": "bare", "state": "SUCCEEDED"}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def texts(**changed: Any) -> dict[str, bytes]:
    """Return the members of a small valid bundle with these changes; None removes a member."""
    member = "inputs/0/input.txt"
    record = {
        "schema": 1,
        "kind": "bundle",
        "hibali": "0",
        "pipeline": {
            "name": "count-letters",
            "version": "1.0",
            "digest": read_descriptor(RAW, "tool.json").digest,
        },
        "inputs": [
            {"id": "in", "member": member, "type": "file", "files": 1, "bytes": 6, "included": True},
        ],
        "run": None,
        "outputs": None,
        **changed.pop("record", {}),
    }
    files = {
        "ro-crate-metadata.json": b"{}",
        "bundle.json": json.dumps(record).encode(),
        "descriptor.json": RAW,
        "invocation.json": json.dumps({"in": member}).encode(),
        "inputs.sha256": f"{sha(INPUT)}  {member}\n".encode(),
        member: INPUT,
        **changed.pop("files", {}),
    }
    files = {name: content for name, content in files.items() if content is not None}
    lines = [f"{sha(content)}  {name}\n" for name, content in files.items() if not name.startswith("inputs/")]
    return {"bundle.sha256": "".join(lines).encode(), **files, **changed.pop("after", {})}


def write(path: Path, files: Mapping[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def bundle_file(tmp_path: Path) -> Callable[..., Path]:
    return lambda **changed: write(tmp_path / "b.zip", texts(**changed))


def refusal(path: Path) -> str:
    """Return the reason why the bundle is refused, in any step."""
    with pytest.raises(RefusedError) as caught, Archive(path) as archive:
        check_contents(archive, read_bundle(archive))
    assert caught.value.code == "bad-bundle"
    return caught.value.message


def test_a_valid_bundle_is_read_and_unpacked(bundle_file: Callable[..., Path], hibali_home: Any) -> None:
    with Archive(bundle_file()) as archive:
        bundle = read_bundle(archive)
        check_contents(archive, bundle)
        folder = unpack(archive, bundle, "here")
        assert unpack(archive, bundle, "here") == folder
    assert bundle.pipeline.reference == "count-letters@1.0"
    assert (folder / "inputs" / "0" / "input.txt").read_bytes() == INPUT
    assert folder.parent == hibali_home.state / "bundles"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"after": {"descriptor.json": RAW + b"\n"}}, "descriptor.json does not match its digest"),
        ({"after": {"inputs/0/input.txt": b"hellO\n"}}, "inputs/0/input.txt does not match its digest"),
        ({"after": {"bundle.sha256": b""}}, "does not list"),
        ({"files": {"invocation.json": None}}, "invocation.json is missing"),
        ({"files": {"inputs/0/input.txt": None}}, "its input files differ from those"),
        ({"files": {"inputs/1/more.txt": b"x"}}, "its input files differ from those"),
        ({"files": {"invocation.json": b'{"in": "/etc/passwd"}'}}, "list different inputs"),
        (
            {"files": {"invocation.json": b'{"in": "inputs/0/input.txt", "in": "x"}'}},
            "repeated with another value",
        ),
        ({"files": {"bundle.json": b'{"schema": 1, "schema": 2}'}}, "repeated with another value"),
        ({"files": {"bundle.json": b"[" * 100 + b"]" * 100}}, "nested deeper"),
        ({"files": {"bundle.json": b'{"schema": 1}'}}, "bundle.json"),
        ({"record": {"run": {**RUN, "image": "/etc/passwd"}}}, "bundle.json"),
        ({"record": {"run": {**RUN, "image": f"sha256:{'0' * 64}\n"}}}, "bundle.json"),
        ({"files": {"descriptor.json": b"{}"}}, "descriptor.json"),
        (
            {"record": {"pipeline": {"name": "x", "version": "1.0", "digest": "0" * 64}}},
            "bundle.json names 000",
        ),
        ({"record": {"pipeline": {"name": "../x", "version": "1.0", "digest": "0" * 64}}}, ""),
        ({"files": {"inputs.sha256": f"{'0' * 64}  inputs/0/../../x\n".encode()}}, "inputs.sha256"),
        ({"files": {"inputs.sha256": f"{'0' * 64}  inputs/7/x\n".encode()}}, "that belong to no input"),
        ({"files": {"outputs.sha256": f"{'0' * 64}  /etc/x\n".encode()}}, "absolute"),
        ({"files": {"image.tar": b"x"}}, "image.json does not describe image.tar"),
    ],
)
def test_invalid_bundles_are_refused(
    bundle_file: Callable[..., Path], changed: dict[str, Any], words: str
) -> None:
    assert words in refusal(bundle_file(**changed))


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "inputs/0/../../x", "inputs/0/a%2e%2e", "inputs/00/x", "x", "inputs/0/%2e%2e", "a\\b"],
)
def test_invalid_member_names_are_refused(tmp_path: Path, name: str) -> None:
    assert "no member of this name" in refusal(write(tmp_path / "b.zip", {**texts(), name: b"x"}))


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    member = "inputs/0/d"
    listed = [f"{member}/a", f"{member}/a/b"]
    record = {
        "inputs": [{"id": "in", "member": member, "type": "folder", "files": 2, "bytes": 2, "included": True}]
    }
    files = {
        "inputs/0/input.txt": None,
        "invocation.json": json.dumps({"in": member}).encode(),
        "inputs.sha256": "".join(f"{sha(b'x')}  {name}\n" for name in listed).encode(),
        **dict.fromkeys(listed, b"x"),
    }
    assert "has a file and a folder with the same name" in refusal(
        write(tmp_path / "b.zip", texts(record=record, files=files))
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zip", texts())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("descriptor.json", b"{}")
    assert "two members have the same name" in refusal(path)


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zip", {name: raw for name, raw in texts().items() if name[:6] != "inputs"})
    info = zipfile.ZipInfo("inputs/0/input.txt")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, b"/etc/passwd")
    assert "not a regular file" in refusal(path)


def test_other_and_truncated_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zip", texts())
    whole = path.read_bytes()
    for wrong in (b"", b"PK", b"x" * 1000, whole[:-1], whole[:100], whole + b"x", whole[1000:]):
        path.write_bytes(wrong)
        refusal(path)


def test_every_flipped_byte_is_detected(tmp_path: Path) -> None:
    """Flipped bits are detected, or are in bytes that are never read (such as the time of a member)."""
    path = write(tmp_path / "b.zip", texts())
    whole = path.read_bytes()
    with Archive(path) as archive:
        truth = read_bundle(archive)
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            with Archive(path) as archive:
                bundle = read_bundle(archive)
                check_contents(archive, bundle)
        except RefusedError:
            continue
        assert bundle == truth, at


def _bomb(path: Path, size: int) -> None:
    """Write a member of zeros that compresses a thousand times."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in texts().items():
            if not name.startswith("inputs/"):
                archive.writestr(name, content)
        with archive.open("inputs/0/input.txt", "w", force_zip64=True) as stream:
            for _ in range(size >> 20):
                stream.write(bytes(1 << 20))


def _bomb_with_a_false_size(path: Path, size: int) -> None:
    """Write the same with a false small size."""
    _bomb(path, size)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("inputs/0/input.txt")
    at = raw.rindex(b"PK\x01\x02")
    assert struct.unpack_from("<L", raw, at + 24)[0] == info.file_size
    struct.pack_into("<L", raw, at + 24, len(INPUT))
    path.write_bytes(raw)


def _long_list(path: Path, size: int) -> None:
    """Write a list of members that would need gigabytes of memory."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    count = min(size // len(entry), 600_000)
    raw = entry * count
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count & 0xFFFF, count & 0xFFFF, len(raw), 0, 0)
    path.write_bytes(raw + end)


def _tar(path: Path, size: int) -> None:
    import tarfile

    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("bundle.json")
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))


_MEASURED = """
import resource, sys
from pathlib import Path
from hibali.errors import RefusedError
from hibali_plugins.bundles.archive import Archive
from hibali_plugins.bundles.read import check_contents, read_bundle
good, *bombs = sys.argv[1:]
with Archive(Path(good)) as archive:  # whatever is imported for that is not counted
    read_bundle(archive)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for bomb in bombs:
    try:
        with Archive(Path(bomb)) as archive:
            check_contents(archive, read_bundle(archive))
    except RefusedError as refused:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, refused.code)
"""


@pytest.mark.heavy
def test_bombs_are_refused_in_bounded_memory(tmp_path: Path, hibali_home: Any) -> None:
    bombs = []
    for make in (_bomb, _bomb_with_a_false_size, _tar, _long_list):
        bombs.append(tmp_path / f"{make.__name__}.zip")
        make(bombs[-1], 64 << 20)
    good = write(tmp_path / "good.zip", texts())
    finished = subprocess.run(
        [sys.executable, "-c", _MEASURED, good, *bombs],
        capture_output=True,
        text=True,
        check=True,
        env=hibali_home.env,
    )
    found = [line.split() for line in finished.stdout.splitlines()]
    assert [code for _, code in found] == ["bad-bundle"] * len(bombs), finished
    assert max(int(kilobytes) for kilobytes, _ in found) < 48 * 1024  # a list of members is at most 32 MiB


def test_archives_are_reproducible(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        with ArchiveWriter(tmp_path / name) as archive:
            for member, content in texts().items():
                archive.add(member, len(content), [content[:3], content[3:]])
            archive.commit()
        digests.add(sha((tmp_path / name).read_bytes()))
    assert len(digests) == 1


def test_an_uncommitted_archive_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RefusedError), ArchiveWriter(tmp_path / "b.zip") as archive:
        archive.add("bundle.json", 3, [b"four"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "path",
    [
        b"a",
        b"T1 w.nii.gz",
        b"sub-01/anat/T1w.nii",
        b"new\nline",
        b"\xff%20\\",
        b"-x",
        "\u00e4".encode(),
        b"a=b,c@d+e",
    ],
)
def test_names_and_members_map_one_to_one(path: bytes) -> None:
    member = member_of(3, path)
    assert member.isascii()
    assert member.isprintable()
    assert path_of(member) == (3, path)
    assert is_member(member)


def test_names_have_a_maximum_length() -> None:
    assert path_of(member_of(0, b"x" * LONGEST)) is None


def test_outputs_are_compared_by_path() -> None:
    compared = compare_outputs({b"a": "1", b"b": "2", b"c": "3"}, {b"a": "1", b"b": "9", b"\xff": "4"})
    assert [(each.path, each.result) for each in compared] == [
        (b"a", OutputResult.EQUAL),
        (b"b", OutputResult.DIFFERENT),
        (b"c", OutputResult.MISSING),
        (b"\xff", OutputResult.EXTRA),
    ]
