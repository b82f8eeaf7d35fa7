"""Test parsing SITE:PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.model import S3Settings, Site, SshSettings
from hibali.config.settings import Settings
from hibali.errors import RefusedError, UsageError
from hibali.locations import (
    Location,
    check_local_file,
    check_writable,
    parse_location,
    read_key,
    read_location,
    read_target,
    work_path,
)

SITES = {
    "juwels": Site(
        "juwels",
        "ssh",
        default_root="project",
        work="@scratch/hibali",
        roots={"project": "/p/x", "scratch": "$SCRATCH/x/", "archive": "/arch"},
        read_only=("archive",),
        ssh=SshSettings("juwels"),
    ),
    "bare-site": Site("bare-site", "ssh", ssh=SshSettings("h")),
    "bucket": Site("bucket", "s3", s3=S3Settings("aws", bucket="b", prefix="top")),
    "store": Site("store", "s3", s3=S3Settings("aws")),
}


def parse(text: str) -> Location:
    found = parse_location(text, SITES, b"/cwd")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("juwels:/a/b", "/a/b"),
        ("juwels:/", "/"),
        ("juwels:a/b", "/p/x/a/b"),
        ("juwels:", "/p/x"),
        ("juwels:~/a", "~/a"),
        ("juwels:~", "~"),
        ("juwels:@scratch/a", "$SCRATCH/x/a"),
        ("juwels:@scratch", "$SCRATCH/x"),
        ("juwels:./@scratch/a", "/p/x/@scratch/a"),
        ("juwels:./~root/a", "/p/x/~root/a"),
        ("juwels:a//b/./c/../d/", "/p/x/a/b/d"),
        ("juwels:*", "/p/x/*"),
        ("juwels:./$HOME/*", "/p/x/$HOME/*"),
        ("juwels:/./$HOME", "/$HOME"),
        ("juwels:@scratch/./$HOME", "$SCRATCH/x/$HOME"),
        ("juwels:cost$", "/p/x/cost$"),
        ("juwels:a$1", "/p/x/a$1"),
        ("juwels:a:b", "/p/x/a:b"),
        ("bare-site:a", "~/a"),
        ("bare-site:", "~"),
        ("a/b", "/cwd/a/b"),
        ("./a:b", "/cwd/a:b"),
        ("a/b:c", "/cwd/a/b:c"),
        ("/a:b", "/a:b"),
        ("./~/a", "/cwd/~/a"),
        ("a~", "/cwd/a~"),
        ("./$HOME/a", "/cwd/$HOME/a"),
        ("./a/$HOME", "/cwd/a/$HOME"),
        ("/./tmp/${x}", "/tmp/${x}"),
        (".", "/cwd"),
        ("/", "/"),
    ],
)
def test_paths_resolve_as_the_contract_says(text: str, path: str) -> None:
    assert parse(text).path == path


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("$HOME", "./$HOME"),
        ("$HOME/a", "./$HOME/a"),
        ("a/${X}/b", "./a/${X}/b"),
        ("/tmp/$X", "/./tmp/$X"),
        ("../$X", "./../$X"),
        ("run_$ID", "./run_$ID"),
        ("~", "./~"),
        ("~/a", "./~/a"),
        ("juwels:$NOVAR/x", "juwels:./$NOVAR/x"),
        ("juwels:/p/$X", "juwels:/./p/$X"),
        ("juwels:@scratch/$X", "juwels:@scratch/./$X"),
        ("juwels:~/$X", "juwels:~/./$X"),
        ("juwels:~$X", "juwels:./~$X"),
        ("bucket:a/${X}", "bucket:./a/${X}"),
        ("store:b/$X", "store:./b/$X"),
    ],
)
def test_variables_are_refused_with_a_hint_for_literal_names(text: str, again: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.code == "variable-in-path"
    assert caught.value.hint.endswith(again)
    if text != "juwels:~$X":  # no account has that name
        literal = parse_location(text, SITES, b"/cwd", literal=True)
        assert literal is not None
        assert os.path.normpath(parse(again).path) == os.path.normpath(literal.path)


@pytest.mark.parametrize(
    ("text", "bucket", "key"),
    [
        ("bucket:", "b", "top"),
        ("bucket:a/b/", "b", "top/a/b"),
        ("bucket:@a/~b", "b", "top/@a/~b"),
        ("bucket:./@a", "b", "top/@a"),
        ("store:other/k/e/y", "other", "k/e/y"),
        ("store:other", "other", ""),
        ("store:other/", "other", ""),
    ],
)
def test_keys_of_object_stores(text: str, bucket: str, key: str) -> None:
    found = parse(text)
    assert (found.bucket, found.path) == (bucket, key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "juwels:~root/a",
        "juwels:../a",
        "juwels:a/../../b",
        "juwels:/..",
        "juwels:@scratch/..",
        "juwels:@nowhere/a",
        "juwels:@",
        "bucket:/a",
        "bucket:a//b",
        "bucket:a/../b",
        "store:",
        "store:/b/k",
        "store:../k",
    ],
)
def test_paths_that_leave_the_root_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.exit == 2


@pytest.mark.parametrize("text", ["nowhere:a", "C:/x", "C:", "JUWELS:a", "juwel:a"])
def test_an_unknown_site_is_never_a_local_file(text: str, tmp_path: Path) -> None:
    assert parse_location(text, SITES, b"/cwd") is None
    with pytest.raises(UsageError) as caught:
        read_location(text, Settings(tmp_path / "config.toml", SITES))
    assert caught.value.code == "unknown-site"


def test_a_similar_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_location("juwells:a", Settings(tmp_path / "config.toml", SITES))
    assert "juwels" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "slash"),
    [
        ("juwels:a/", True),
        ("juwels:a", False),
        ("juwels:", True),
        ("juwels:~", True),
        ("juwels:@scratch", True),
        ("juwels:@scratch/a", False),
        ("juwels:./~", False),
        ("bucket:a/", True),
        ("a/", True),
        ("a", False),
    ],
)
def test_a_trailing_slash_is_kept_as_a_flag(text: str, slash: bool) -> None:
    assert parse(text).slash is slash


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        ("juwels:~", "~"),
        ("juwels:@scratch", "$SCRATCH"),
        ("juwels:~/a", "~"),
        ("juwels:/a", "/"),
        ("bucket:a", "top"),
        ("bucket:a/b", "top/a"),
    ],
)
def test_the_parent_of_a_home_folder_is_never_the_root_of_the_filesystem(text: str, parent: str) -> None:
    assert parse(text).parent.path == parent


@pytest.mark.parametrize("text", ["juwels:@archive/x", "juwels:@archive", "juwels:/arch/x", "juwels:/arch"])
def test_a_read_only_root_is_recognized_in_every_spelling(text: str) -> None:
    with pytest.raises(RefusedError):
        check_writable(parse(text))


def test_a_sibling_of_a_read_only_root_is_writable() -> None:
    check_writable(parse("juwels:/archive"))


def test_work_folders_follow_their_root() -> None:
    assert work_path(SITES["juwels"]) == "$SCRATCH/x/hibali"
    assert work_path(SITES["bare-site"]) == "~/.hibali"


def test_names_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    typed = os.fsdecode(b"juwels:/a/\xff\xfe")
    assert read_location(typed, Settings(tmp_path / "config.toml", SITES)).raw == b"/a/\xff\xfe"


def test_dots_in_local_paths_follow_the_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    monkeypatch.chdir(tmp_path)
    found = read_location("link/../x", Settings(tmp_path / "config.toml", {}))
    assert found.path == str(tmp_path / "real" / "x")


def test_children_are_named_below() -> None:
    assert parse("juwels:a/").child(b"f\xff").raw == b"/p/x/a/f\xff"
    assert parse("store:b").child(b"f").path == "f"
    assert parse("/").child(b"f").path == "/f"


def test_a_site_name_without_colon_is_refused_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(tmp_path / "config.toml", SITES)
    for read in (read_location, read_target):
        for text in ("juwels", "juwels/"):
            with pytest.raises(UsageError) as caught:
                read(text, settings)
            assert caught.value.code == "site-without-colon"
            assert caught.value.message == "juwels is a site: juwels:"
            assert f"./{text}" in caught.value.hint
        assert read("./juwels", settings).path == str(tmp_path / "juwels")
        assert read("juwels/x", settings).path == str(tmp_path / "juwels/x")
    (tmp_path / "juwels").mkdir()
    assert read_location("juwels", settings).path == str(tmp_path / "juwels")
    with pytest.raises(UsageError):
        read_target("juwels", settings)


def test_unsupported_kinds_are_reported_when_used(tmp_path: Path) -> None:
    sites = {"web": Site("web", "url", url="smb://example.org")}
    with pytest.raises(UsageError) as caught:
        read_location("web:a", Settings(tmp_path / "config.toml", sites))
    assert caught.value.code == "not-built"


NAMES = st.text(alphabet=st.characters(exclude_characters="\0"), max_size=30)


@given(st.sampled_from(["juwels:", "bare-site:", ""]), NAMES)
def test_no_path_ever_leaves_its_root(start: str, path: str) -> None:
    text = start + path
    try:
        found = parse_location(text, SITES, b"/cwd")
    except UsageError:
        return
    if found is None:
        assert ":" in text.partition("/")[0]
        return
    if found.typed_local:
        assert found.path.startswith("/")
        return
    assert ".." not in found.path.split("/")
    assert found.path.startswith(("/", "~", "$SCRATCH"))
    assert not found.path.startswith("~") or found.path == "~" or found.path.startswith("~/")


@given(NAMES)
def test_keys_stay_below_the_prefix(path: str) -> None:
    try:
        found = parse("bucket:" + path)
    except UsageError:
        return
    assert found.path == "top" or found.path.startswith("top/")
    assert not {"", ".", ".."} & set(found.path.split("/"))


@given(st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name))
def test_bytes_survive(name: bytes) -> None:
    text = "juwels:/d/./" + name.decode("utf-8", "surrogateescape")
    if not {b"", b".", b".."} & set(name.split(b"/")):
        assert parse(text).raw == b"/d/" + name


@pytest.mark.parametrize(
    ("default", "text", "whole", "path"),
    [
        ("juwels", ":a", "juwels:a", "/p/x/a"),
        ("juwels", ":", "juwels:", "/p/x"),
        ("juwels", ":@scratch/a", "juwels:@scratch/a", "$SCRATCH/x/a"),
        ("juwels", "bare-site:a", "bare-site:a", "~/a"),
        ("bucket", ":a", "bucket:a", "top/a"),
    ],
)
def test_a_path_without_a_site_is_at_the_default_site(default: str, text: str, whole: str, path: str) -> None:
    found = read_location(text, Settings(Path("c"), SITES, default_site=default))
    assert (found.site.name, found.text, found.path) == (
        default if text[0] == ":" else "bare-site",
        whole,
        path,
    )


def test_without_a_default_site_it_is_refused() -> None:
    settings = Settings(Path("c"), SITES)
    for read in (read_location, read_target, read_key):
        with pytest.raises(UsageError) as raised:
            read(":a", settings)
        assert raised.value.code == "no-default-site"
        assert "./:a" in raised.value.hint
    assert read_location("./:a", settings).typed_local
    with pytest.raises(UsageError) as raised:
        read_location(":a", Settings(Path("c"), SITES, default_site="gone"))
    assert (raised.value.code, raised.value.subject) == ("unknown-site", "gone")
    assert "unset HIBALI_SITE" in raised.value.hint
    assert "sites add" not in raised.value.hint


def test_a_default_site_is_no_local_file() -> None:
    with pytest.raises(UsageError) as raised:
        check_local_file(":table.csv", Settings(Path("c"), SITES, default_site="juwels"))
    assert raised.value.code == "not-a-local-file"
    assert read_key(":a//b", Settings(Path("c"), SITES, default_site="bucket")).text == "bucket:a//b"
