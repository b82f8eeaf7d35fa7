"""Test a catalogue at SITE:PATH that two accounts share, from the command line."""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.services.image import write_image
from tests.services.session import REPOSITORY
from tests.support import strace
from tests.support.backends import add_site, make_backend
from tests.support.catalogues import git, raw
from tests.support.requirements import skip_or_fail

_CALLS = {"rename": strace.RENAME, "sync": strace.SYNC, "mkdir": strace.MAKE_FOLDER, "link": strace.LINK}


@pytest.fixture
def other(hibali: Any) -> dict[str, str]:
    """Return the environment of another account, with a state folder of its own."""
    state = hibali.home.folder / "other-state"
    state.mkdir(mode=0o700)
    return {"HIBALI_STATE": str(state)}


def add_pipeline(hibali: Any, name: str, **more: object) -> None:
    file = hibali.home.folder / f"{name}.json"
    file.write_bytes(raw(name, **more))  # type: ignore[arg-type]
    hibali("pipelines", "add", file, "--name", name, exit=0)


def outcomes(answer: Any) -> dict[str, str]:
    return {line["name"]: line["fate"] for line in answer.lines if line["kind"] == "exchanged"}


def test_pipelines_are_shared_between_accounts_over_ssh(
    hibali: Any, other: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = make_backend("ssh", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "cluster", place)
    add_pipeline(hibali, "tool")
    hibali("pipelines", "remotes", "add", "lab", "cluster:shared/pipelines", exit=0)
    missing = hibali("pipelines", "publish", "--to", "lab", "--json", exit=3)
    assert "hibali mkdir cluster:shared/pipelines" in missing.last["hint"]
    hibali("mkdir", "cluster:shared/pipelines", exit=0)
    assert outcomes(hibali("pipelines", "publish", "--to", "lab", "--json", exit=0)) == {"tool": "published"}
    assert outcomes(hibali("pipelines", "fetch", "--from", "lab", "--json", env=other, exit=0)) == {
        "tool": "fetched"
    }
    existing = sorted(name.decode() for name in place.names("shared/pipelines"))
    assert existing == ["tool", "tool/1.0", "tool/1.0/descriptor.json", "tool/1.0/published.json"]


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["ssh", "s3"])
def test_images_are_stored_below_the_remote_and_fetched_on_request(
    hibali: Any, other: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest, word: str
) -> None:
    place = make_backend(word, tmp_path, request.getfixturevalue)
    hibali.env.update(place.env)
    add_site(hibali.home.config, "cluster", place)
    add_pipeline(hibali, "tool", **{"container-image": {"type": "docker", "image": "lab/tool:1"}})
    archive = tmp_path / "image.tar"
    write_image(archive, "lab/tool:1", {"bin/tool": os.urandom(100_000)}, {})
    hibali("pipelines", "image", "add", "tool", "--archive", archive, exit=0)
    hibali("pipelines", "remotes", "add", "lab", "cluster:shared", exit=0)
    hibali("mkdir", "cluster:shared", exit=0)
    for content in ("sent", "there"):
        [fetched] = [
            line
            for line in hibali("pipelines", "publish", "--to", "lab", "--json", exit=0).lines
            if line["kind"] == "exchanged"
        ]
        assert fetched["image"] == content
    assert archive.read_bytes() in place.files("shared").values()
    assert outcomes(hibali("pipelines", "fetch", "--from", "lab", "--json", env=other, exit=0)) == {
        "tool": "fetched"
    }
    hibali("pipelines", "image", "get", "tool", "--from", "lab", env=other, exit=0)
    shown = hibali("pipelines", "show", "tool", "--json", env=other, exit=0).last
    assert shown["image"]["here"] is True
    assert shown["image"]["digest"] == f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"


def test_sites_are_distinguished_from_hosts_of_git(hibali: Any, tmp_path: Path) -> None:
    """Check that `lab:x` is SITE:PATH if a site `lab` exists, and otherwise git's HOST:PATH."""
    add_pipeline(hibali, "tool")
    hibali("pipelines", "remotes", "add", "lab", "lab.invalid:pipelines.git", exit=0)
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "git asked for $*" >&2\nexit 255\n')
    ssh.chmod(0o755)
    refused = hibali("pipelines", "publish", "--to", "lab", "--json", env={"GIT_SSH": str(ssh)}, exit=5)
    assert "lab.invalid git-upload-pack" in refused.last["message"]


def test_a_bare_repository_at_a_site_is_reported(hibali: Any, tmp_path: Path) -> None:
    place = make_backend("local", tmp_path, None)
    add_site(hibali.home.config, "here", place)
    git(tmp_path, "init", "-q", "--bare", str(tmp_path / "local-root/lab.git"))
    hibali("pipelines", "remotes", "add", "lab", "here:lab.git", exit=0)
    answer = hibali("pipelines", "fetch", "--from", "lab", "--json", exit=2)
    assert (answer.last["code"], "git URL" in answer.last["hint"]) == ("git-repository", True)


def test_nothing_is_published_to_a_read_only_site(hibali: Any, tmp_path: Path) -> None:
    place = make_backend("local", tmp_path, None)
    add_site(hibali.home.config, "here", place)
    text = hibali.home.config.read_text()
    hibali.home.config.write_text(
        text.replace('default_root = "data"', 'default_root = "data"\nread_only = ["data"]')
    )
    add_pipeline(hibali, "tool")
    hibali("pipelines", "remotes", "add", "lab", "here:", exit=0)
    answer = hibali("pipelines", "publish", "--to", "lab", "--json", exit=8)
    assert answer.last["code"] == "read-only-root"
    assert place.names("") == set()


@pytest.mark.heavy
def test_a_dataset_is_created_in_a_ria_store_and_datalad_clones_it(
    hibali: Any, other: dict[str, str], tmp_path: Path
) -> None:
    url = f"ria+file://{tmp_path}/store#{uuid.uuid4()}"
    add_pipeline(hibali, "tool")
    hibali("pipelines", "remotes", "add", "lab", url, exit=0)
    hibali("pipelines", "fetch", "--from", "lab", exit=3)
    assert not (tmp_path / "store").exists()
    assert outcomes(hibali("pipelines", "publish", "--to", "lab", "--json", exit=0)) == {"tool": "published"}
    assert outcomes(hibali("pipelines", "fetch", "--from", "lab", "--json", env=other, exit=0)) == {
        "tool": "fetched"
    }
    clone_by_datalad(hibali, url, tmp_path / "clone")
    assert (tmp_path / "clone/tool/1.0/descriptor.json").read_bytes() == raw("tool")


@pytest.mark.heavy
def test_a_dataset_is_created_in_a_ria_store_over_ssh(
    hibali: Any, ssh_server: Any, tmp_path: Path, other: dict[str, str]
) -> None:
    """Check that git's own ssh settings are used, and that a path that a login shell would expand is refused with a hint."""
    add_pipeline(hibali, "tool")
    login = {"GIT_SSH_COMMAND": " ".join(ssh_server.command)}
    identifier = uuid.uuid4()
    for store in (tmp_path / "store", tmp_path / "a store"):
        url = f"ria+ssh://{ssh_server.host}{store}#{identifier}"
        remote, code = ("spaced", 2) if " " in store.name else ("lab", 0)
        hibali("pipelines", "remotes", "add", remote, url, exit=0)
        answer = hibali("pipelines", "publish", "--to", remote, "--json", env=login, exit=code)
    assert f"git init --bare -b main '{tmp_path}/a store/{str(identifier)[:3]}" in answer.last["hint"]
    assert not (tmp_path / "a store").exists()
    dataset = tmp_path / "store" / str(identifier)[:3] / str(identifier)[3:]
    assert (tmp_path / "store/ria-layout-version").read_text() == "1\n"
    assert (dataset / "ria-layout-version").read_text() == "2\n"
    assert git(dataset, "ls-tree", "-r", "--name-only", "main").split() == [
        "tool/1.0/descriptor.json",
        "tool/1.0/published.json",
    ]
    here = f"ria+file://{tmp_path}/store#{identifier}"
    hibali("pipelines", "remotes", "add", "lab", here, "--replace", exit=0)
    assert outcomes(hibali("pipelines", "fetch", "--from", "lab", "--json", env=other, exit=0)) == {
        "tool": "fetched"
    }


@pytest.mark.heavy
@pytest.mark.parametrize("calls", _CALLS)
def test_a_killed_publication_is_completed_by_the_same_command(
    hibali: Any, other: dict[str, str], tmp_path: Path, calls: str
) -> None:
    """Kill hibali or its agent at each such system call: nothing incomplete is offered, and the same command completes it."""
    strace.require_strace()
    place = make_backend("local", tmp_path, None)
    add_site(hibali.home.config, "here", place)
    for number in range(1, 60):
        name = f"tool-{number}"
        add_pipeline(hibali, name)
        remote = f"lab-{number}"
        hibali("mkdir", f"here:{remote}", exit=0)
        hibali("pipelines", "remotes", "add", remote, f"here:{remote}", exit=0)
        line = hibali.command("pipelines", "publish", name, "--to", remote)
        killed = subprocess.run(
            [*strace.kill_at(_CALLS[calls], number), *line], env=hibali.env, capture_output=True, check=False
        )
        offered = outcomes(hibali("pipelines", "fetch", "--from", remote, "--json", env=other, exit=0))
        assert offered in ({}, {name: "fetched"})
        again = outcomes(hibali("pipelines", "publish", name, "--to", remote, "--json", exit=0))
        assert set(again) == {name}
        seen = outcomes(hibali("pipelines", "fetch", "--from", remote, "--json", env=other, exit=0))
        assert set(seen) == {name}
        if killed.returncode == 0:
            return
    pytest.fail("no publication completed")


def clone_by_datalad(hibali: Any, url: str, target: Path) -> None:
    datalad = REPOSITORY / ".venv/bin/datalad"
    environment = {
        **hibali.env,
        "PATH": f"{datalad.parent}:{hibali.env['PATH']}",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    annex = subprocess.run(["git", "annex", "version"], env=environment, capture_output=True, check=False)
    if annex.returncode != 0:
        skip_or_fail("git-annex is missing")
    done = subprocess.run(
        [datalad, "clone", url, target], env=environment, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done
