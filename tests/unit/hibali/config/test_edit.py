"""Test the config.toml that `sites add` and `sites remove` write."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hibali.config.edit import add_site, add_sites, check_site_table, remove_site, render_site
from hibali.config.settings import load_sites
from hibali.errors import RefusedError, UsageError

CLUSTER: dict[str, Any] = {
    "kind": "ssh",
    "roots": {"scratch": "$SCRATCH/x"},
    "ssh": {"host": "login", "command": ["gsissh", "-p", "2222"]},
    "scheduler": {"name": "slurm"},
}
FOLDER: dict[str, Any] = {"kind": "local", "roots": {"data": "/d"}, "default_root": "data"}
WRITTEN = """# my sites
version = 1

# the big one
[sites.cluster]  # since 2024
kind = "ssh"
roots = { scratch = "$SCRATCH/x" }
[sites.cluster.ssh]
host = "login"  # from ~/.ssh/config
command = ["gsissh", "-p", "2222"]
[sites.cluster.scheduler]
name = "slurm"

# the small one
[sites.here]
kind = "local"  # mine
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "config.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text(WRITTEN)
    path.chmod(0o600)
    return path


def test_the_configuration_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    assert add_site(str(path), "cluster", CLUSTER)[0] == "added"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_sites(str(path)).site("cluster").ssh is not None


def test_the_identical_site_changes_nothing(config: Path) -> None:
    assert add_site(str(config), "cluster", CLUSTER)[0] == "same"
    assert config.read_text() == WRITTEN


def test_adding_keeps_all_existing_text(config: Path) -> None:
    assert add_site(str(config), "other", FOLDER)[0] == "added"
    assert config.read_text().startswith(WRITTEN)
    assert set(load_sites(str(config)).sites) == {"cluster", "here", "other"}


def test_a_different_site_is_refused(config: Path) -> None:
    with pytest.raises(RefusedError, match=r"; different: kind, .*ssh") as caught:
        add_site(str(config), "cluster", FOLDER)
    assert len(caught.value.message) < 500
    assert config.read_text() == WRITTEN


@pytest.mark.parametrize("second", ["cluster", "not a name"], ids=["differs", "invalid"])
def test_several_sites_are_added_at_once_or_not_at_all(config: Path, second: str) -> None:
    with pytest.raises((RefusedError, UsageError)):
        add_sites(str(config), {"new": FOLDER, second: FOLDER})
    assert config.read_text() == WRITTEN
    changes = add_sites(str(config), {"new": FOLDER, "cluster": FOLDER, "newer": FOLDER}, replace=True)
    assert [change for change, _ in changes] == ["added", "replaced", "added"]
    assert set(load_sites(str(config)).sites) == {"new", "cluster", "newer", "here"}


def test_replacing_keeps_comments(config: Path) -> None:
    table = {
        "kind": "ssh",
        "roots": {"a": "/a", "b": "/b"},
        "work": "@a/w",
        "ssh": {"host": "new"},
        "limits": {"array_size": 7},
    }
    assert add_site(str(config), "cluster", table, replace=True)[0] == "replaced"
    text = config.read_text()
    for comment in (
        "# my sites",
        "# the big one",
        "# since 2024",
        "# from ~/.ssh/config",
        "# the small one",
        "# mine",
    ):
        assert comment in text
    site = load_sites(str(config)).site("cluster")
    assert (site.work, site.scheduler, site.limits.array_size) == ("@a/w", None, 7)
    assert text.index("array_size") < text.index("[sites.here]")


def test_a_site_may_move_its_files_through_another_one(config: Path) -> None:
    unicore = {
        "kind": "unicore",
        "unicore": {"url": "https://u.example.org", "token_variable": "T", "data": "cluster"},
    }
    for change in ("added", "same"):
        assert add_site(str(config), "far", unicore)[0] == change
    assert add_site(str(config), "cluster", FOLDER, replace=True)[0] == "replaced"
    assert load_sites(str(config)).site("far").files_at == load_sites(str(config)).site("cluster")
    bucket = {"kind": "s3", "s3": {"endpoint": "aws", "bucket": "brains"}}
    with pytest.raises(UsageError, match=r"sites\.far\.unicore\.data: must be another site"):
        add_site(str(config), "cluster", bucket, replace=True)


UNICORE = {
    "kind": "unicore",
    "unicore": {"url": "https://u.example.org", "token_variable": "T", "data": "late"},
}


@pytest.mark.parametrize("names", [("far", "late"), ("late", "far")])
def test_sites_of_one_command_may_refer_to_each_other_in_any_order(
    config: Path, names: tuple[str, str]
) -> None:
    tables = {"far": UNICORE, "late": FOLDER}
    given = {name: tables[name] for name in names}
    for change in ("added", "same"):
        assert [found for found, _ in add_sites(str(config), given)] == [change] * 2
    settings = load_sites(str(config))
    assert settings.site("far").files_at == settings.site("late")


def test_a_site_by_which_another_one_moves_its_files_is_not_removed(config: Path) -> None:
    add_sites(str(config), {"late": FOLDER, "far": UNICORE})
    before = config.read_text()
    with pytest.raises(
        UsageError, match=r"names it, which moves their files: far\n.*sites\.far\.unicore\.data"
    ) as caught:
        remove_site(str(config), "late")
    assert (caught.value.code, config.read_text()) == ("site-in-use", before)
    remove_site(str(config), "far")
    remove_site(str(config), "late")


def test_replacing_can_change_the_kind(config: Path) -> None:
    add_site(str(config), "cluster", FOLDER, replace=True)
    assert load_sites(str(config)).site("cluster").kind == "local"


def test_removing_keeps_other_text(config: Path) -> None:
    remove_site(str(config), "cluster")
    text = config.read_text()
    assert "cluster" not in text
    assert "# the small one\n[sites.here]" in text
    remove_site(str(config), "here")
    assert load_sites(str(config)).sites == {}
    with pytest.raises(UsageError):
        remove_site(str(config), "here")


def test_an_invalid_site_is_never_written(config: Path) -> None:
    with pytest.raises(UsageError) as caught:
        add_site(
            str(config), "bucket", {"kind": "s3", "s3": {"endpoint": "http://remote.example", "bucket": "/"}}
        )
    assert caught.value.message.count("\n") == 2
    assert config.read_text() == WRITTEN


@pytest.mark.parametrize(
    "text",
    [
        'sites = { here = { kind = "local" } }\n',
        '[sites]\nhere = { kind = "local" }\n',
        '[sites]\nhere.kind = "local"\n',
        'sites.here.kind = "local"\n',
    ],
)
@pytest.mark.parametrize("step", ["add", "replace", "remove"])
def test_unusual_toml_is_edited_correctly_or_not_at_all(tmp_path: Path, text: str, step: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    name = "other" if step == "add" else "here"
    with suppress(UsageError):
        if step == "remove":
            remove_site(str(path), name)
        else:
            add_site(str(path), name, FOLDER, replace=True)
    if path.read_text() != text:
        site = load_sites(str(path)).sites.get(name)
        assert site == (None if step == "remove" else check_site_table(name, FOLDER))


def test_a_linked_file_stays_a_link(tmp_path: Path, config: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(config)
    add_site(str(link), "other", FOLDER)
    assert link.is_symlink()
    assert "other" in config.read_text()


def test_values_with_toml_syntax_are_quoted() -> None:
    text = render_site(
        "cluster", {**CLUSTER, "scheduler": {"name": "slurm", "prologue": ['x = "]\n[sites.y]']}}
    )
    assert "\n[sites.y]" not in text
