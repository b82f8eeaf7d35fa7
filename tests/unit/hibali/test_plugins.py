"""Test loading modules by names in the configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hibali import plugins
from hibali.config import kinds
from hibali.config.kinds import StoreKind
from hibali.config.settings import SettingsError, parse_settings, require_known_programs
from hibali.errors import UsageError
from runs.schedulers.base import JobVariables


def install(monkeypatch: pytest.MonkeyPatch, group: str, points: dict[str, str]) -> None:
    """Let an installed package declare these entry points, and nothing else."""
    monkeypatch.setattr(plugins, "_installed", lambda: {group: points})


def test_names_are_those_of_the_package_s_modules() -> None:
    assert {"direct", "slurm"} <= set(plugins.built_in_names("runs.schedulers"))
    assert plugins.load("runs.schedulers", "slurm").__name__ == "runs.schedulers.slurm"


def test_stores_are_only_what_can_be_opened() -> None:
    for word in plugins.built_in_names("transfers.stores"):
        assert hasattr(plugins.load("transfers.stores", word), "open_store"), word


@pytest.mark.parametrize("word", ["no-such", "../slurm", "slurm.x", "", "__init__", "Slurm"])
def test_an_unknown_name_lists_the_known_ones(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        plugins.load("runs.schedulers", word)
    assert caught.value.code == "unknown-scheduler"
    assert "slurm" in caught.value.hint


def test_names_of_hibali_itself_ask_no_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> plugins.Points:
        raise AssertionError

    monkeypatch.setattr(plugins, "_installed", asked)
    monkeypatch.setattr(
        plugins, "_folders", lambda: {"hibali.stores": {"crate": "tests.support.plugin.hibali_example.box"}}
    )
    kinds._load_kind.cache_clear()
    text = '[sites.xx]\nkind = "crate"\ncrate.folder = "/b"\n[sites.yy]\nkind = "local"\nscheduler.name = "slurm"\n'
    sites = parse_settings(text, Path("config.toml")).sites
    assert sites["xx"].kind == "crate"
    require_known_programs(sites["yy"])


def test_plugins_add_names_but_never_replace_built_in_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        "hibali.schedulers",
        {"slurm": "json:dumps", "my-own": "json:loads", "broken": "no_such_module:x"},
    )
    assert plugins.load("runs.schedulers", "slurm").__name__ == "runs.schedulers.slurm"
    assert plugins.load("runs.schedulers", "my-own").__name__ == "loads"
    assert "my-own" in plugins.plugin_names("runs.schedulers")
    with pytest.raises(UsageError) as caught:
        plugins.load("runs.schedulers", "broken")
    assert caught.value.code == "broken-plugin"


def add_stores(monkeypatch: pytest.MonkeyPatch, **modules: object) -> None:
    """Add entry points of the group `hibali.stores` with these modules."""
    for word, module in modules.items():
        monkeypatch.setitem(sys.modules, f"plugin_{word}", module)
    install(monkeypatch, "hibali.stores", {word: f"plugin_{word}" for word in modules})


def problems_of(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, Path("config.toml"))
    return caught.value.message.splitlines()[1:]


def test_modules_without_a_kind_are_not_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    add_stores(monkeypatch, part=SimpleNamespace())
    for word in ("sftp", "webdav", "part", "nothing"):
        [problem] = problems_of(f'[sites.xx]\nkind = "{word}"\n')
        assert problem == f"line 2: sites.xx.kind: {word!r} must be one of {', '.join(kinds.kind_names())}"
    assert not {"sftp", "webdav", "part"} & set(kinds.kind_names())


def test_a_kind_cannot_take_the_name_of_a_key_of_all_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    add_stores(monkeypatch, limits=SimpleNamespace(KIND=StoreKind()))
    assert len(problems_of('[sites.xx]\nkind = "limits"\n')) == 1


def test_a_kind_that_cannot_be_imported_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "hibali.stores", {"box": "no_such_module"})
    [problem] = problems_of('[sites.xx]\nkind = "box"\n')
    assert problem.startswith("line 2: sites.xx.kind: the store from 'no_such_module' cannot be loaded")


def declare(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(text)


def test_installed_packages_are_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declare(
        tmp_path / "one" / "box-1.dist-info",
        "# ours\n[console_scripts]\nbox = box:main\n\n[hibali.commands]\ncrate = box.crate:crate [extra]\n",
    )
    declare(
        tmp_path / "two" / "box-2.dist-info", "[hibali.commands]\ncrate = other:crate\nlid = other:lid.open\n"
    )
    declare(tmp_path / "two" / "box", "[hibali.commands]\nno = no:no\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / each) for each in ("one", "two", "missing")])
    assert plugins._installed()["hibali.commands"] == {"crate": "box.crate:crate", "lid": "other:lid.open"}


def test_what_cannot_be_loaded_is_left_out_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        "hibali.parts",
        {"good": "json:dumps", "broken": "no_such_module:x", "pipelines.read": "json:loads"},
    )
    assert [name for name, _ in plugins.every("hibali.parts")] == ["good"]
    assert [name for name, _ in plugins.every("hibali.parts", "pipelines")] == ["pipelines.read"]
    assert plugins.find("hibali.parts", "other") is None
    with pytest.raises(UsageError, match="broken"):
        plugins.find("hibali.parts", "broken")


def test_a_hint_names_only_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"hibali.commands": {"box": "x:y"}, "hibali.options": {"push.lid": "x:y"}}
    monkeypatch.setattr(plugins, "_folders", lambda: names)
    monkeypatch.setattr(plugins, "_installed", lambda: {"hibali.stores": {"crate": "x:y"}})
    offered = [plugins.if_offered(each, each) for each in ("box", "push.lid", "crate", "lid", "y")]
    assert offered == ["box", "push.lid", "crate", "", ""]


def test_a_folder_whose_requirement_is_missing_counts_as_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "hibali_plugins"
    declare(root / "one", "[hibali.parts]\none = json\n")
    declare(root / "two", "[hibali.requires]\nthree = three\n[hibali.parts]\ntwo = json\n")
    declare(root / "four", "[hibali.requires]\ntwo = two\n[hibali.parts]\nfour = json\n")
    monkeypatch.setattr(plugins, "__file__", str(tmp_path / "hibali" / "plugins.py"))
    assert plugins._folders.__wrapped__() == {"hibali.parts": {"one": "json"}}


def test_an_unknown_scheduler_is_an_error_only_where_it_is_used() -> None:
    text = '[sites.xx]\nkind = "local"\n[sites.xx.scheduler]\nname = "other"\n'
    assert parse_settings(text, Path("config.toml")).sites["xx"].scheduler is not None
    assert problems_of(f"{text}queue = 1\n") == ["line 5: sites.xx.scheduler.queue: unknown key"]


def test_scheduler_variables_are_plain_names() -> None:
    with pytest.raises(ValueError, match="variable"):
        JobVariables(job=("A:-$(id)",))
