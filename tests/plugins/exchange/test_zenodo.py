"""Test the search and publication of descriptors at Zenodo, with a double that bosh uses, too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from boutiques.publisher import Publisher
from boutiques.searcher import Searcher
from boutiques.zenodoHelper import ZenodoHelper

from tests.services.rest import GARBAGE, LOST, STATUS
from tests.services.zenodo import Zenodo

TOOL = {
    "name": "Segment brains",
    "tool-version": "1.0",
    "author": "An Author",
    "description": "Find the brain in an image",
    "schema-version": "0.5",
    "command-line": "segment [IMAGE]",
    "container-image": {"type": "docker", "image": "lab/segment:1"},
    "inputs": [{"id": "image", "name": "image", "type": "File", "value-key": "[IMAGE]"}],
    "tags": {"domain": ["neuroinformatics", "mri"], "toolbox": "fsl"},
    "url": "https://example.org/segment",
}
WORDS = ("pipelines", "publish", "segment-brains", "--zenodo", "--yes")


@pytest.fixture
def tool(hibali: Any, zenodo: Zenodo) -> dict[str, Any]:
    """Add a pipeline to the catalogue, and configure the double and a token."""
    hibali.home.config.write_text(
        f'version = 1\n[catalogue]\nzenodo = "{zenodo.origin}"\norigins = ["{zenodo.origin}"]\n'
    )
    hibali.home.config.chmod(0o600)
    hibali.env["ZENODO_TOKEN"] = zenodo.token
    (hibali.home.folder / "tool.json").write_text(json.dumps(TOOL, indent=2))
    hibali("pipelines", "add", "tool.json", exit=0)
    return TOOL


@pytest.fixture
def bosh_at(zenodo: Zenodo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let bosh use the double; return a folder for its files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ZenodoHelper, "get_zenodo_endpoint", lambda _: zenodo.origin)
    return tmp_path


@pytest.mark.usefixtures("tool")
def test_a_descriptor_is_published_once_and_comes_back_unchanged(hibali: Any, zenodo: Zenodo) -> None:
    made = hibali(*WORDS, "--json", exit=0).last
    assert (made["state"], made["doi"], made["title"]) == (
        "published",
        "10.5072/zenodo.1000",
        "Segment brains",
    )
    again = hibali(*WORDS, "--json", exit=0).last
    assert (again["state"], again["doi"]) == ("present", made["doi"])
    [record] = zenodo.published()
    assert record.files == {"segment-brains.json": (hibali.home.folder / "tool.json").read_bytes()}
    assert {"Boutiques", "schema-version:0.5", "domain:mri", "toolbox:fsl", "docker"} <= set(
        record.metadata["keywords"]
    )
    hibali("pipelines", "remove", "segment-brains@1.0", exit=0)
    hibali("pipelines", "add", made["id"], exit=0)
    shown = hibali("pipelines", "show", "segment-brains", "--json", exit=0).last
    assert f"hibali-sha256-{shown['digest']}" in record.metadata["keywords"]


@pytest.mark.usefixtures("tool")
def test_bosh_finds_what_hibali_published(hibali: Any, bosh_at: Path) -> None:
    assert bosh_at
    hibali(*WORDS, exit=0)
    [found] = Searcher("BRAIN", no_trunc=True).search()
    assert (found["ID"], found["TITLE"]) == ("zenodo.1000", "Segment brains")


@pytest.mark.usefixtures("tool")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # bosh leaves a file open
def test_hibali_finds_and_adds_what_bosh_published(hibali: Any, zenodo: Zenodo, bosh_at: Path) -> None:
    for name in ("Other tool", "Mask (old)"):
        path = bosh_at / "bosh.json"
        more = {"deprecated-by-doi": "10.5072/zenodo.1"} if "old" in name else {}
        path.write_text(json.dumps({**TOOL, "name": name, **more}))
        assert Publisher(str(path), zenodo.token, no_int=True).publish() == "OK"
    answer = hibali("pipelines", "search", "--zenodo", "bRain", "--json", exit=0)
    found = [line for line in answer.lines if line["kind"] == "zenodo-record"]
    assert {(line["title"], line["deprecated"]) for line in found} == {
        ("Other tool", False),
        ("Mask (old)", True),
    }
    assert found[0]["downloads"] >= found[1]["downloads"]
    assert b"zenodo.1000" in hibali("pipelines", "search", "--zenodo", "other", "tool", exit=0).out
    hibali("pipelines", "add", "zenodo.1000", exit=0)
    assert hibali("pipelines", "search", "--zenodo", "a/b|c]", "--json", exit=0).last["count"] == 0


@pytest.mark.usefixtures("tool")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "depositions$"),
        pytest.param("PUT", "files", marks=pytest.mark.heavy),
        ("POST", "publish$"),
        pytest.param("GET", "records/1000", marks=pytest.mark.heavy),
        pytest.param("GET", "depositions$", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.parametrize(
    "kind", [LOST, *(pytest.param(kind, marks=pytest.mark.heavy) for kind in (STATUS, GARBAGE))]
)
def test_the_same_command_goes_on_after_a_failed_step_and_publishes_once(
    hibali: Any, zenodo: Zenodo, method: str, path: str, kind: str
) -> None:
    zenodo.fail(kind, method, path, times=8, status=503)
    first = hibali(*WORDS)
    assert first.exit in {0, 5}, str(first)
    zenodo.forget_faults()
    assert hibali(*WORDS, "--json", exit=0).last["doi"] == "10.5072/zenodo.1000"
    assert len(zenodo.depositions) == len(zenodo.published()) == 1
    assert zenodo.token.encode() not in first.out + first.err


@pytest.mark.usefixtures("tool")
def test_what_cannot_be_published_is_refused_before_anything(hibali: Any, zenodo: Zenodo) -> None:
    (hibali.home.folder / "bare.json").write_text(
        json.dumps({name: value for name, value in TOOL.items() if name != "author"} | {"name": "bare"})
    )
    hibali("pipelines", "add", "bare.json", exit=0)
    words = ("pipelines", "publish", "segment-brains", "bare", "--zenodo", "--json")
    assert hibali(*words, "--yes", exit=2).last["code"] == "not-publishable"
    assert hibali(*WORDS[:4], "--json", exit=8).last["code"] == "unconfirmed"
    hibali.env["ZENODO_TOKEN"] = "wrong"
    assert hibali(*WORDS, "--json", exit=4).last["code"] == "zenodo-login"
    del hibali.env["ZENODO_TOKEN"]
    assert hibali(*WORDS, "--json", exit=4).last["code"] == "zenodo-login"
    hibali("pipelines", "publish", "segment-brains", exit=2)
    hibali("pipelines", "publish", "--zenodo", exit=2)
    assert zenodo.depositions == {}


@pytest.mark.usefixtures("tool")
def test_a_record_with_another_content_and_a_link_elsewhere_are_noticed(hibali: Any, zenodo: Zenodo) -> None:
    zenodo.watch = lambda request, when: bool(  # after the upload, the content changes
        when == "before"
        and re.search("publish$", request.path)
        and zenodo.depositions[1000].files.update({"segment-brains.json": b"{}"})
    )
    assert hibali(*WORDS, "--json", exit=6).last["code"] == "content-differs"
    zenodo.depositions.clear()
    described = zenodo._described
    zenodo._described = lambda made: {**described(made), "links": {"bucket": "https://evil.example/x"}}  # type: ignore[method-assign]
    assert hibali(*WORDS, "--json", exit=5).last["code"] == "bad-answer"
