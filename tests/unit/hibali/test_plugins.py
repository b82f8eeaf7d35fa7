"""Words of the configuration and the modules they name."""

from __future__ import annotations

from importlib import metadata

import pytest

from hibali import plugins
from hibali.errors import UsageError


def test_the_folder_is_the_table() -> None:
    assert {"direct", "slurm"} <= set(plugins.built_in_words("runs.schedulers"))
    assert plugins.load("runs.schedulers", "slurm").__name__ == "runs.schedulers.slurm"


@pytest.mark.parametrize("word", ["no-such", "../slurm", "slurm.x", "", "__init__", "Slurm"])
def test_an_unknown_word_lists_what_exists(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        plugins.load("runs.schedulers", word)
    assert caught.value.code == "unknown-scheduler"
    assert "slurm" in caught.value.hint


def test_others_add_words_but_never_replace_ours(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "my-own" in plugins.words("runs.schedulers")
    with pytest.raises(UsageError) as caught:
        plugins.load("runs.schedulers", "broken")
    assert caught.value.code == "broken-plugin"
