"""Test loading modules by names in the configuration."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from hibali import plugins
from hibali.config import kinds
from hibali.config.kinds import StoreKind
from hibali.config.settings import SettingsError, parse_settings, require_known_programs
from hibali.errors import UsageError
from runs.schedulers.base import JobVariables


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
    def asked(group: str) -> list[metadata.EntryPoint]:
        raise AssertionError(group)

    monkeypatch.setattr(metadata, "entry_points", asked)
    kinds._load_kind.cache_clear()
    text = '[sites.xx]\nkind = "fsspec"\nfsspec.url = "memory://data"\n[sites.yy]\nkind = "local"\nscheduler.name = "slurm"\n'
    sites = parse_settings(text, Path("config.toml")).sites
    assert sites["xx"].kind == "fsspec"
    require_known_programs(sites["yy"])


def test_plugins_add_names_but_never_replace_built_in_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint("slurm", "json:dumps", "hibali.schedulers"),
        metadata.EntryPoint("my-own", "json:loads", "hibali.schedulers"),
        metadata.EntryPoint("broken", "no_such_module:x", "hibali.schedulers"),
    ]
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: points if group == "hibali.schedulers" else []
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
    points = [metadata.EntryPoint(word, f"plugin_{word}", "hibali.stores") for word in modules]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == "hibali.stores" else [])


def problems_of(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, Path("config.toml"))
    return caught.value.message.splitlines()[1:]


def test_modules_without_a_kind_are_not_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    add_stores(monkeypatch, part=SimpleNamespace())
    for word in ("sftp", "webdav", "part", "nothing"):
        [problem] = problems_of(f'[sites.xx]\nkind = "{word}"\n')
        assert (
            problem
            == f"line 2: sites.xx.kind: {word!r} must be one of ssh, s3, local, url, globus, cbrain, ebrains, firecrest, fsspec, iri, unicore"
        )


def test_a_kind_cannot_take_the_name_of_a_key_of_all_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    add_stores(monkeypatch, limits=SimpleNamespace(KIND=StoreKind()))
    assert len(problems_of('[sites.xx]\nkind = "limits"\n')) == 1


def test_a_kind_that_cannot_be_imported_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("box", "no_such_module", "hibali.stores")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "hibali.stores" else [])
    [problem] = problems_of('[sites.xx]\nkind = "box"\n')
    assert problem.startswith("line 2: sites.xx.kind: the store from 'no_such_module' cannot be loaded")


def test_an_unknown_scheduler_is_an_error_only_where_it_is_used() -> None:
    text = '[sites.xx]\nkind = "local"\n[sites.xx.scheduler]\nname = "other"\n'
    assert parse_settings(text, Path("config.toml")).sites["xx"].scheduler is not None
    assert problems_of(f"{text}queue = 1\n") == ["line 5: sites.xx.scheduler.queue: unknown key"]


def test_scheduler_variables_are_plain_names() -> None:
    with pytest.raises(ValueError, match="variable"):
        JobVariables(job=("A:-$(id)",))
