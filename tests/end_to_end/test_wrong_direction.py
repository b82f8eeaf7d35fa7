"""Test commands with swapped arguments, a missing colon or a variable: they are refused and create nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers
from tests.support.trees import make_tree, read_tree


@pytest.fixture
def world(local_there: Transfers) -> Transfers:
    """Make a site with data, a folder on this machine, and a second site."""
    there = local_there
    make_tree(there.root, {b"x": b"there"})
    home = there.hibali.home
    make_tree(home.folder / "got", {b"x": b"here"})
    config = home.config
    table = '[sites.other]\nkind = "local"\ndefault_root = "r"\n[sites.other.roots]\nr = "{}"\n'
    config.write_text(config.read_text() + table.format(there.folder / "other"))
    return there


def refused(there: Transfers, code: str, *words: Any, **more: Any) -> Any:
    """Check for exit 2 with this code, a hint, and nothing created."""
    home = there.hibali.home.folder
    before = sorted(home.iterdir()), read_tree(home / "got"), read_tree(there.root)
    answer = there.hibali(*words, "--json", exit=2, **more)
    assert answer.last["code"] == code, str(answer)
    assert (sorted(home.iterdir()), read_tree(home / "got"), read_tree(there.root)) == before
    return answer.last


@pytest.mark.parametrize(
    ("words", "code", "meant"),
    [
        (("push", "got", "there"), "site-without-colon", "there:PATH"),
        (("push", "got", "there/data"), "wrong-direction", "there is a site: hibali push got there:data"),
        (("push", "got", "elsewhere"), "wrong-direction", "hibali sync got elsewhere"),
        (("push", "got", "thre/x"), "wrong-direction", "Did you mean there:x, or hibali sync got thre/x?"),
        (("push", "there:x", "new"), "wrong-direction", "hibali pull there:x new"),
        (("push", "there:x", "other:x"), "wrong-direction", "hibali sync there:x other:x"),
        (("pull", "got", "there:new"), "wrong-direction", "hibali push got there:new"),
        (("pull", "there/x", "new"), "wrong-direction", "there is a site: hibali pull there:x new"),
        (("pull", "there", "new"), "site-without-colon", "there:PATH"),
        (("pull", "there:x", "other"), "site-without-colon", "./other"),
        (("pull", "there:x", "other:"), "wrong-direction", "hibali sync there:x other:"),
        (("pull", "there:x", "other/"), "site-without-colon", "./other/"),
    ],
)
def test_push_needs_a_site_as_target_and_pull_as_source(
    world: Transfers, words: tuple[str, ...], code: str, meant: str
) -> None:
    assert meant in refused(world, code, *words)["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ("sync", "got", "there"),
        ("sync", "-n", "got", "there/"),
        ("plan", "got", "there"),
        ("plan", "got", "there:new", "-o", "there"),
        ("push", "got", "there:data", "--backup-dir", "there"),
        ("mkdir", "there"),
        ("manifest", "got", "-o", "there"),
        ("manifest", "got", "--bagit", "there"),
        ("runs", "collect", "20260102-030405-0a1b2c3d", "there"),
        ("runs", "collect", "20260102-030405-0a1b2c3d", "--table", "there"),
        ("run", "nothing", "answers.json", "--site", "there", "--wait", "--collect", "there"),
    ],
)
def test_the_name_of_a_site_without_a_colon_is_never_a_target(
    world: Transfers, words: tuple[str, ...]
) -> None:
    assert "there:" in refused(world, "site-without-colon", *words)["message"]


def test_a_local_folder_with_the_name_of_a_site_needs_a_prefix(world: Transfers) -> None:
    folder = world.hibali.home.folder
    world.hibali("sync", "got", "./there", exit=0)
    # it is read under its plain name, but changed only with `./`
    world.hibali("push", "there", "there:copy", exit=0)
    refused(world, "site-without-colon", "rm", "-r", "--yes", "there")
    world.hibali("pull", "there:data/x", "there/x", exit=0)
    world.hibali("rm", "-r", "--yes", "./there", exit=0)
    assert not (folder / "there").exists()
    refused(world, "not-a-local-file", "manifest", "got", "-o", "there:SUMS")
    world.hibali("manifest", "got", "-o", "./there:SUMS", exit=0)
    assert (folder / "there:SUMS").exists()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [
        ("push", "got", "there:$NOVAR/x"),
        ("push", "got", "there:@data/${NOVAR}"),
        ("push", "$HOME", "there:x"),
        ("pull", "there:x", "$HOME/x"),
        ("pull", "there:x", "~/x"),
        ("sync", "got", "$EMPTY/x"),
        ("sync", "there:$HOME", "new"),
        ("push", "got", "there:data", "--backup-dir", "there:$X"),
        ("plan", "got", "there:$X"),
        ("plan", "got", "there:new", "-o", "$X"),
        ("mkdir", "there:$X"),
        ("mkdir", "~"),
        ("rm", "-r", "--yes", "there:$X"),
        ("ls", "there:$HOME"),
        ("du", "there:$HOME"),
        ("verify", "there:$HOME"),
        ("verify", "got", "there:${HOME}"),
        ("manifest", "there:$HOME"),
        ("manifest", "got", "-o", "$X"),
    ],
)
def test_variables_in_a_typed_path_are_refused(world: Transfers, words: tuple[str, ...]) -> None:
    environment = {"EMPTY": "", "X": "got"}
    problem = refused(world, "variable-in-path", *words, env=environment)
    assert "./" in problem["hint"] or "/./" in problem["hint"]


def test_a_name_with_a_dollar_sign_is_possible(world: Transfers) -> None:
    folder = world.hibali.home.folder
    make_tree(folder / "$HOME", {b"x$Y": b"1"})
    world.hibali("push", "./$HOME", "there:./$X", exit=0)
    world.hibali("push", f"{folder}/./$HOME/x$Y", "there:@data/./$X/", exit=0)
    assert read_tree(world.place.at("$X")) == {b"x$Y": b"1"}
    world.hibali("plan", "./$HOME", "there:./$Z", "-o", "plan", exit=0)
    world.hibali("plan", "./$HOME", "./$Z", "-o", "plan2", exit=0)
    for plan in ("plan", "plan2"):
        world.hibali("apply", plan, exit=0)
    assert read_tree(world.place.at("$Z")) == read_tree(folder / "$Z") == {b"x$Y": b"1"}


@pytest.mark.heavy
@pytest.mark.parametrize("value", [None, "", "relative"])
def test_a_root_with_an_unset_variable_is_refused(
    world: Transfers, value: str | None, tmp_path: Path
) -> None:
    config = world.hibali.home.config
    config.write_text(config.read_text().replace("r = ", 'gone = "$TEST_ROOT/deep"\nr = ', 1))
    environment = {} if value is None else {"TEST_ROOT": value}
    for words in (
        ("push", "got", "other:@gone/x"),
        ("ls", "other:@gone"),
        ("rm", "-r", "--yes", "other:@gone/x"),
    ):
        answer = world.hibali(*words, "--json", exit=3, env=environment)
        assert "TEST_ROOT" in answer.last["about"] + answer.last["message"], str(answer)
        assert answer.last["code"] != "no-such-folder"  # that would be another root
    assert not Path("/deep").exists()
    environment = {"TEST_ROOT": str(tmp_path)}
    (tmp_path / "deep").mkdir()  # push creates no root
    world.hibali("push", "got", "other:@gone/x", exit=0, env=environment)
    assert (tmp_path / "deep/x/x").read_bytes() == b"here"
