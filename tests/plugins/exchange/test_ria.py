"""Test which dataset a RIA URL names, and which are not created."""

from __future__ import annotations

from pathlib import Path

import pytest

from hibali.errors import RefusedError, UsageError
from hibali_plugins.exchange.remotes.git import make_dataset, read_ria_url

ID = "3cd8e4c7-a8b2-4b6e-b6a7-5e2d0c8ef3a1"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"ria+file:///data/ria#{ID}", f"/data/ria/3cd/{ID[3:]}"),
        (
            f"ria+ssh://ada@store.example.org:2222/data/ria/#{ID}",
            f"ssh://ada@store.example.org:2222/data/ria/3cd/{ID[3:]}",
        ),
        (f"ria+https://store.example.org/ria#{ID}", f"https://store.example.org/ria/3cd/{ID[3:]}"),
    ],
)
def test_a_dataset_is_found_by_its_id(url: str, expected: str) -> None:
    place = read_ria_url(url)
    assert place is not None
    assert place.git_url == expected


@pytest.mark.parametrize(
    "url",
    [
        "ria+file:///data/ria",
        "ria+ssh://host/store#../../x",
        f"ria+ftp://host/store#{ID}",
        f"ria+https:///store#{ID}",
        f"ria+file://host/store#{ID}",
        f"ria+file:store#{ID}",
        f"ria+ssh://host/store#{ID}/x",
    ],
)
def test_urls_without_a_dataset_are_refused_with_an_example(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_ria_url(url)
    assert refused.value.code == "bad-ria-url"
    assert "#" in refused.value.hint


def test_other_urls_are_no_ria_stores() -> None:
    assert read_ria_url("https://example.org/x.git") is None


@pytest.mark.parametrize(
    "url",
    [
        f"ria+https://host/store#{ID}",
        f"ria+ssh://-oProxyCommand=touch/store#{ID}",
        f"ria+ssh://host/a store#{ID}",
        f"ria+ssh://host/$(touch x)#{ID}",
        f"ria+ssh://ho st/store#{ID}",
    ],
)
def test_stores_at_other_hosts_are_refused_with_a_command_to_create_them(url: str) -> None:
    place = read_ria_url(url)
    assert place is not None
    with pytest.raises(UsageError) as refused:
        make_dataset(place)
    assert refused.value.code == "cannot-make-dataset"
    assert "git init --bare -b main" in refused.value.hint


@pytest.mark.parametrize("command", ["ssh $HOST", "ssh; touch sprung", "ssh 'half"])
def test_ssh_settings_that_need_a_shell_are_ignored(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", command)
    place = read_ria_url(f"ria+ssh://host/store#{ID}")
    assert place is not None
    with pytest.raises(UsageError, match="need a shell"):
        make_dataset(place)


def test_a_created_store_matches_datalad(tmp_path: Path) -> None:
    place = read_ria_url(f"ria+file://{tmp_path}/new/store#{ID}")
    assert place is not None
    for _ in range(2):
        make_dataset(place)
    store, dataset = tmp_path / "new/store", Path(place.folder)
    assert (store / "ria-layout-version").read_text() == "1\n"
    assert (dataset / "ria-layout-version").read_text() == "2\n"
    assert {"HEAD", "objects", "annex", "archives"} <= {each.name for each in dataset.iterdir()}
    assert [each.name for each in dataset.parent.iterdir()] == [ID[3:]]
    assert (store / "error_logs").is_dir()


@pytest.mark.parametrize(("version", "accepted"), [("1", True), ("1|l\n", True), ("2\n", False), ("", False)])
def test_a_store_of_another_layout_is_refused(tmp_path: Path, version: str, *, accepted: bool) -> None:
    (tmp_path / "ria-layout-version").write_text(version)
    place = read_ria_url(f"ria+file://{tmp_path}#{ID}")
    assert place is not None
    if accepted:
        make_dataset(place)
        return
    with pytest.raises(RefusedError) as refused:
        make_dataset(place)
    assert refused.value.code == "unknown-layout"
    assert not (tmp_path / ID[:3]).exists()
