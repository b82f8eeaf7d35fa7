"""Test reading image archives, and refusing damaged, hostile and endless ones."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from registry.images.archive import read_archive
from registry.images.record import is_among, wanted_name
from registry.pipeline import Container
from tests.services.image import write_image

NAME = "localhost/lab/tool:1"
ROOT = Path(__file__).parents[4]
Members = dict[str, bytes]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_image(tmp_path / "image.tar", NAME, {"bin/tool": os.urandom(300_000)}, {"bin/sh": "tool"})
    return tmp_path / "image.tar"


def read_members(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar if each.isreg()}  # type: ignore[union-attr]


def write_members(path: Path, members: Members, links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def config_of(members: Members) -> bytes:
    return members[json.loads(members["manifest.json"])[0]["Config"]]


def docker_only(members: Members) -> Members:
    return {name: raw for name, raw in members.items() if name not in {"oci-layout", "index.json"}}


def layout_only(members: Members) -> Members:
    return {name: raw for name, raw in members.items() if name != "manifest.json"}


def test_every_way_to_save_an_image_is_read(archive: Path, tmp_path: Path) -> None:
    members = read_members(archive)
    identifier = sha256(config_of(members))
    both = read_archive(archive).record
    assert (both.format, both.id, both.names) == ("docker-archive", identifier, (NAME,))
    assert (both.digest, both.size) == (sha256(archive.read_bytes()), archive.stat().st_size)
    layout = read_archive(write_members(tmp_path / "oci.tar", layout_only(members)))
    assert (layout.record.format, layout.record.id, layout.record.names) == (
        "oci-archive",
        identifier,
        (NAME,),
    )
    manifest = json.loads(members["index.json"])["manifests"][0]["digest"]
    assert layout.digests == {identifier, manifest, layout.record.digest}
    docker = read_archive(write_members(tmp_path / "docker.tar", docker_only(members)))
    assert (docker.record.format, docker.record.id) == ("docker-archive", identifier)
    assert manifest not in docker.digests
    dotted = {f"./{name}": raw for name, raw in members.items()}
    assert read_archive(write_members(tmp_path / "dotted.tar", dotted)).record.id == identifier


def test_linked_layers_are_followed(archive: Path, tmp_path: Path) -> None:
    members = docker_only(read_members(archive))
    entry = json.loads(members["manifest.json"])[0]
    [layer] = entry["Layers"]
    members["manifest.json"] = json.dumps([{**entry, "Layers": ["abc/layer.tar"]}]).encode()
    linked = write_members(tmp_path / "linked.tar", members, {"abc/layer.tar": f"../{layer}"})
    assert read_archive(linked).record.id == sha256(config_of(members))
    with pytest.raises(UsageError, match="loop"):
        read_archive(write_members(tmp_path / "x.tar", members, {"abc/layer.tar": "layer.tar"}))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_archives_are_read(archive: Path, compress: Callable[[bytes], bytes]) -> None:
    plain = read_archive(archive).record
    half = archive.stat().st_size // 2
    content = archive.read_bytes()
    archive.write_bytes(compress(content[:half]) + compress(content[half:]))
    found = read_archive(archive).record
    assert (found.id, found.names, found.extension) == (plain.id, plain.names, ".tar")
    assert found.digest == sha256(archive.read_bytes())
    archive.write_bytes(archive.read_bytes()[:-20000])
    with pytest.raises(UsageError):
        read_archive(archive)


def sif(data: bytes, *, declared: int | None = None) -> bytes:
    """Return the beginning of an image of `singularity build` (sylabs/sif, pkg/sif/sif.go)."""
    size = len(data) if declared is None else declared
    launch, magic = b"#!/usr/bin/env run-singularity\n\0", b"SIF_MAGIC\0"
    head = struct.pack(
        "<32s10s3s3s16s8q", launch, magic, b"01\0", b"02\0", b"u" * 16, 1, 1, 47, 48, 128, 0, 128, size
    )
    return head + data


def test_a_sif_is_read_and_must_be_complete(tmp_path: Path) -> None:
    path = tmp_path / "tool.sif"
    path.write_bytes(sif(b"squash" * 1000))
    found = read_archive(path).record
    assert (found.format, found.id, found.digest, found.extension) == (
        "sif",
        found.digest,
        sha256(path.read_bytes()),
        ".sif",
    )
    for content in (path.read_bytes()[:-1], path.read_bytes()[:60], sif(b"x", declared=-1)):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="ends too early"):
            read_archive(path)


def change(members: Members, name: str, **values: Any) -> Members:
    entry = {**json.loads(members[name])[0], **values}
    return {**members, name: json.dumps([entry]).encode()}


def two_images(members: Members) -> Members:
    config = config_of(members).replace(b"1970", b"1971")
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    return {**change(members, "manifest.json", Config=name), name: config}


def another_layer(members: Members) -> Members:
    return {**change(docker_only(members), "manifest.json", Layers=["layer.tar"]), "layer.tar": b"another"}


WRONG: dict[str, tuple[Callable[[Members], Members], type[HibaliError]]] = {
    "no manifest": (lambda m: {k: v for k, v in m.items() if not k.endswith(".json")}, UsageError),
    "no layer": (lambda m: {k: v for k, v in m.items() if len(v) < 100_000}, UsageError),
    "no config": (lambda m: {k: v for k, v in m.items() if v != config_of(m)}, UsageError),
    "no oci-layout": (lambda m: {k: v for k, v in layout_only(m).items() if k != "oci-layout"}, UsageError),
    "no image": (lambda m: {**m, "manifest.json": b"[]"}, UsageError),
    "two images": (lambda m: {**m, "manifest.json": json.dumps(json.loads(m["manifest.json"]) * 2).encode()}, UsageError),
    "no json": (lambda m: {**m, "manifest.json": b"[{"}, UsageError),
    "keys twice": (lambda m: {**m, "manifest.json": m["manifest.json"].replace(b'"Layers"', b'"Config": "x", "Layers"')}, UsageError),
    "layers elsewhere": (lambda m: change(m, "manifest.json", Layers=["../../etc/passwd"]), UsageError),
    "too few layers": (lambda m: change(m, "manifest.json", Layers=[]), UsageError),
    "hostile names": (lambda m: change(m, "manifest.json", RepoTags=["--privileged"]), UsageError),
    "names that are none": (lambda m: change(m, "manifest.json", RepoTags=[7]), UsageError),
    "a changed blob": (lambda m: {k: v.replace(b"1970", b"1971") if v == config_of(m) else v for k, v in m.items()}, RefusedError),
    "a name that climbs": (lambda m: {**m, "../x": b"x"}, RefusedError),
    "an absolute name": (lambda m: {**m, "/x": b"x"}, RefusedError),
    "one name twice": (lambda m: {**m, "./index.json": b"x"}, RefusedError),
    "two different images": (two_images, RefusedError),
    "a layer of another image": (another_layer, RefusedError),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_incomplete_or_inconsistent_archives_are_refused(what: str, archive: Path) -> None:
    damage, kind = WRONG[what]
    write_members(archive, damage(read_members(archive)))
    with pytest.raises(kind) as refused:
        read_archive(archive)
    assert type(refused.value) is kind


def test_an_archive_truncated_anywhere_is_refused(archive: Path) -> None:
    content = archive.read_bytes()
    for size in (0, 1, 600, len(content) // 3, len(content) // 2, len(content) - 20_000):
        archive.write_bytes(content[:size])
        with pytest.raises(UsageError, match="not a complete image archive"):
            read_archive(archive)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (
        b"",
        b"hello",
        b"\x1f\x8b hello",
        b"BZh9 hello",
        b"\xfd7zXZ\0hello",
        b"\x28\xb5\x2f\xfd" * 9,
    ):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(UsageError):
            read_archive(tmp_path / "x")
    with pytest.raises(NotFoundError):
        read_archive(tmp_path / "missing")
    with pytest.raises(UsageError):
        read_archive(tmp_path)
    with pytest.raises(UsageError):
        read_archive(Path("/dev/zero"))
    (tmp_path / "x").write_bytes(b"PK\x03\x04 zip")
    with pytest.raises(RefusedError):
        read_archive(tmp_path / "x")


def tar_bomb() -> bytes:
    """Return 6 MiB that expand to one member of 6 GiB."""
    squeeze = gzip.GzipFile(fileobj=(held := io.BytesIO()), mode="wb", compresslevel=6)
    member = tarfile.TarInfo("layer.tar")
    member.size = 6 << 30
    squeeze.write(member.tobuf(tarfile.GNU_FORMAT))
    squeeze.close()
    # a gzip file may have several members
    return held.getvalue() + gzip.compress(bytes(64 << 20), 6) * 96


def huge_header(kind: bytes) -> bytes:
    """Return a header that declares an extension of 4 GiB, which tarfile would read at once."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = kind, 4 << 30
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20), 1)


def endless_sparse() -> bytes:
    member = tarfile.TarInfo("x")
    member.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1  # more sparse headers follow
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    further = b"00000000001\0" * 42 + b"\1" + bytes(7)
    return gzip.compress(bytes(block) + further * 200_000, 1)


def deep_headers() -> bytes:
    one = tarfile.TarInfo("././@LongLink")
    one.type, one.size = tarfile.GNUTYPE_LONGNAME, 1
    return (one.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")) * 50_000


BOMBS: dict[str, Callable[[], bytes]] = {
    "tar": tar_bomb,
    "pax header": lambda: huge_header(tarfile.XHDTYPE),
    "global pax header": lambda: huge_header(tarfile.XGLTYPE),
    "long name": lambda: huge_header(tarfile.GNUTYPE_LONGNAME),
    "deep headers": deep_headers,
    "sparse headers": endless_sparse,
}

_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from hibali.errors import HibaliError
from registry.images.archive import read_archive
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_archive(Path(sys.argv[1]))
except HibaliError as error:
    print(int(error.exit), error.code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("bomb", BOMBS)
def test_decompression_bombs_are_refused_in_bounded_memory(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(BOMBS[bomb]())
    line = [sys.executable, "-c", _IN_LITTLE_MEMORY, tmp_path / "bomb", ROOT]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=120)
    code, word, grown = done.stdout.split()
    assert (code, word) == ("8", "archive-bomb"), done
    assert int(grown) * 1024 < 64 << 20


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.images.archive.MOST_MEMBERS", 50)
    (tmp_path / "bomb").write_bytes(b"".join(tarfile.TarInfo(f"x{number}").tobuf() for number in range(51)))
    with pytest.raises(RefusedError, match="more than 50 members"):
        read_archive(tmp_path / "bomb")


def docker(image: str, index: str = "") -> Container:
    return Container("docker", image=image, index=index)


@pytest.mark.parametrize(
    ("container", "name"),
    [
        (None, ""),
        (Container("rootfs", url="https://example.org/x"), ""),
        (docker("fsl/bet:1"), "fsl/bet:1"),
        (docker("fsl/bet:1", "index.docker.io"), "fsl/bet:1"),
        (docker("fsl/bet:1", "http://index.docker.io"), "fsl/bet:1"),
        (docker("fsl/bet:1", "https://index.docker.io/v1/"), "fsl/bet:1"),
        (docker("bet", "quay.io/fsl"), "quay.io/fsl/bet"),
        (Container("singularity", image="docker://fsl/bet"), "fsl/bet"),
        (Container("singularity", image="fsl/bet", index="docker://"), "fsl/bet"),
        (Container("singularity", image="fsl/bet", index="shub://"), ""),
        (Container("singularity", image="shub://fsl/bet"), ""),
    ],
)
def test_image_name_wanted_by_a_descriptor(container: Container | None, name: str) -> None:
    assert wanted_name(container) == name


@pytest.mark.parametrize(
    ("name", "called", "same"),
    [
        ("busybox", "docker.io/library/busybox:latest", True),
        ("busybox:1", "index.docker.io/library/busybox:1", True),
        ("lab/tool:1", "localhost/lab/tool:1", True),
        ("localhost/lab/tool:1", "localhost/lab/tool:1", True),
        ("quay.io:443/lab/tool:1", "quay.io:443/lab/tool:1", True),
        ("quay.io/lab/tool:1", "docker.io/lab/tool:1", False),
        ("lab/tool:1", "lab/tool:2", False),
        ("lab/tool", "lab/tool:1", False),
        ("lab/tool:1", "lab/tools:1", False),
    ],
)
def test_equivalent_image_names(name: str, called: str, same: bool) -> None:
    assert is_among(name, [called]) is same
