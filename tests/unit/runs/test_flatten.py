"""Test flattening the layers of an image into one tar."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runs import flatten
from tests.services.podman import write_tools

FOLDER, LINK, HARD = "folder", "link", "hard"
Member = tuple[str, Any]  # a name and its content, or a kind with its target


def layer(members: Sequence[Member], compression: str = "") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=f"w:{compression}") as tar:
        for name, what in members:
            member = tarfile.TarInfo(name)
            content = b""
            if isinstance(what, bytes):
                content, member.size = what, len(what)
            elif what == FOLDER:
                member.type, member.mode = tarfile.DIRTYPE, 0o555
            elif what == "device":
                member.type = tarfile.CHRTYPE
            else:
                kind, member.linkname = what
                member.type = tarfile.SYMTYPE if kind == LINK else tarfile.LNKTYPE
            tar.addfile(member, io.BytesIO(content))
    return held.getvalue()


def archive(path: Path, *layers: bytes, config: dict[str, Any] | None = None) -> str:
    """Write an image as `docker save` does; return its id."""
    text = json.dumps({"config": config or {}}).encode()
    identifier = hashlib.sha256(text).hexdigest()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": f"{identifier}.json", "RepoTags": ["a:1"], "Layers": names}]
    members = [*zip(names, layers, strict=True), (f"{identifier}.json", text)]
    path.write_bytes(layer([*members, ("manifest.json", json.dumps(manifest).encode())]))
    return identifier


def flat(path: Path) -> dict[str, Any]:
    """Return the result of tar(1) by name: the content, the link target, or the kind."""
    found: dict[str, Any] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            assert member.name not in found
            if member.isreg():
                stream = tar.extractfile(member)
                assert stream is not None
                found[member.name] = stream.read()
            else:
                found[member.name] = (
                    FOLDER if member.isdir() else (LINK if member.issym() else HARD, member.linkname)
                )
    return {name: what for name, what in found.items() if name not in {*flatten.FOLDERS, *flatten.FILES}}


def flattened(tmp_path: Path, *layers: bytes) -> dict[str, Any]:
    identifier = archive(tmp_path / "image.tar", *layers)
    flatten.flatten(str(tmp_path / "image.tar"), str(tmp_path / "flat.tar"), identifier)
    return flat(tmp_path / "flat.tar")


def test_upper_layers_replace_and_remove(tmp_path: Path) -> None:
    lower = layer(
        [
            ("a", FOLDER),
            ("a/kept", b"1"),
            ("a/removed", b"1"),
            ("./a/replaced", b"1"),
            ("gone", FOLDER),
            ("gone/x", b"1"),
            ("opaque", FOLDER),
            ("opaque/old", b"1"),
            ("file-to-folder", b"1"),
            ("folder-to-file", FOLDER),
            ("folder-to-file/x", b"1"),
        ]
    )
    upper = layer(
        [
            ("a/.wh.removed", b""),
            ("/a/replaced", b"2"),
            (".wh.gone", b""),
            ("opaque", FOLDER),
            ("opaque/.wh..wh..opq", b""),
            ("opaque/new", b"2"),
            ("file-to-folder", FOLDER),
            ("file-to-folder/y", b"2"),
            ("folder-to-file", b"2"),
        ],
        "gz",
    )
    assert flattened(tmp_path, lower, upper) == {
        "a": FOLDER,
        "a/kept": b"1",
        "a/replaced": b"2",
        "opaque": FOLDER,
        "opaque/new": b"2",
        "file-to-folder": FOLDER,
        "file-to-folder/y": b"2",
        "folder-to-file": b"2",
    }


def test_a_removed_name_can_be_added_again_by_an_upper_layer(tmp_path: Path) -> None:
    layers = (layer([("a", FOLDER), ("a/x", b"1")]), layer([(".wh.a", b"")]), layer([("a/y", b"3")]))
    assert flattened(tmp_path, *layers) == {"a/y": b"3"}


def test_a_hard_link_keeps_its_content_when_the_other_name_is_replaced(tmp_path: Path) -> None:
    lower = layer([("one", b"content"), ("two", (HARD, "one")), ("three", (HARD, "one"))])
    assert flattened(tmp_path, lower) == {"one": b"content", "two": (HARD, "one"), "three": (HARD, "one")}
    upper = layer([("one", b"new")])
    assert flattened(tmp_path, lower, upper) == {"one": b"new", "two": b"content", "three": b"content"}


@pytest.mark.parametrize("order", [lambda a, b: (a, b), lambda a, b: (b, a)])
def test_nothing_is_written_below_a_symlink(
    tmp_path: Path, order: Callable[[Member, Member], Sequence[Member]]
) -> None:
    link, below = ("out", (LINK, "/etc")), ("out/passwd", b"root::0:0")
    for found in (
        flattened(tmp_path, layer(order(link, below))),
        flattened(tmp_path, *(layer([each]) for each in order(link, below))),
    ):
        assert not (
            {"out"} <= {name for name, what in found.items() if what != FOLDER} and "out/passwd" in found
        )


def test_devices_and_setuid_bits_are_dropped(tmp_path: Path) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for name, mode in (("su", 0o4755), ("secret", 0o000)):
            member = tarfile.TarInfo(name)
            member.mode, member.uid, member.uname = mode, 0, "root"
            tar.addfile(member)
    identifier = archive(tmp_path / "image.tar", held.getvalue(), layer([("dev/sda", "device")]))
    flatten.flatten(str(tmp_path / "image.tar"), str(tmp_path / "flat.tar"), identifier)
    with tarfile.open(tmp_path / "flat.tar") as tar:
        modes = {member.name: member.mode for member in tar}
    assert (modes["su"], modes["secret"]) == (0o755, 0o400)
    assert "dev/sda" not in modes
    assert {"mnt/0", "mnt/1", "proc", "etc/passwd"} <= set(modes)


def run_alone(tmp_path: Path, identifier: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program as on a site: a Python without hibali reads it from standard input."""
    words = [sys.executable, "-I", "-", tmp_path / "image.tar", tmp_path / "flat.tar", identifier]
    script = Path(flatten.__file__).read_bytes()
    return subprocess.run(words, input=script, capture_output=True, check=False, cwd="/")


def test_it_runs_without_hibali_and_prints_the_settings_of_the_image(tmp_path: Path) -> None:
    config = {"Env": ["PATH=/opt/bin", "A=b=c"], "Entrypoint": ["/tool"]}
    identifier = archive(tmp_path / "image.tar", layer([("ä\udcff", b"1")]), config=config)
    ended = run_alone(tmp_path, identifier)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"environment": config["Env"], "entrypoint": ["/tool"]}
    write_tools(tmp_path / "image.tar", "a:1")
    assert b"does not contain" in run_alone(tmp_path, identifier).stderr


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../x", b"1")], b"leaves the root"),
        ([("a/../../x", b"1")], b"leaves the root"),
        ([("x", (HARD, "../y"))], b"leaves the root"),
        ([("x", (HARD, "nowhere"))], b"cannot be unpacked"),
    ],
)
def test_a_hostile_layer_is_rejected(tmp_path: Path, members: list[Member], message: bytes) -> None:
    ended = run_alone(tmp_path, archive(tmp_path / "image.tar", layer(members)))
    assert ended.returncode == 65
    assert message in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_decompression_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten, "LEAST_LIMIT", 1 << 20)
    with pytest.raises(flatten.BadArchiveError, match="much larger"):
        flattened(tmp_path, layer([("zeros", bytes(16 << 20))], "xz"))
    monkeypatch.setattr(flatten, "MOST_MEMBERS", 10)
    with pytest.raises(flatten.BadArchiveError, match="too many"):
        flattened(tmp_path, layer([(str(number), b"") for number in range(20)]))
