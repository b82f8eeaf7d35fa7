"""Test fetching descriptors from all sources without running or following anything in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from hibali.http.fetch import fetch
from registry.descriptor import read_descriptor
from registry.sources import Access, find_candidates, source_name
from tests.properties.descriptors import make_document, make_input
from tests.services.serving import serve_in_thread

RAW = json.dumps(make_document("tool [A]", make_input("a"))).encode()
OTHER = json.dumps({"name": "an invocation"}).encode()


@pytest.fixture
def access(tmp_path: Path) -> Access:
    (tmp_path / "scratch").mkdir()
    return Access(tmp_path / "scratch")


@contextlib.contextmanager
def serving(answer: Callable[[str], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """Run a local web server; `answer` maps a path to status, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = serve_in_thread(server)
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("-", "file"),
        ("tool.json", "file"),
        ("tools/", "folder"),
        ("https://example.org/tool.json", "url"),
        ("https://example.org/tools.git#sub", "git"),
        ("git+ssh://example.org/tools", "git"),
        ("zenodo.3267250", "zenodo"),
        ("zenodo:3267250", "zenodo"),
        ("10.5281/zenodo.3267250", "zenodo"),
        ("https://doi.org/10.5281/zenodo.3267250", "zenodo"),
        ("https://zenodo.org/records/3267250", "zenodo"),
        ("bosh:", "bosh"),
        ("niwrap:fsl/bet", "niwrap"),
        ("niwrap@main:fsl", "niwrap"),
    ],
)
def test_the_kind_of_a_source(place: str, expected: str) -> None:
    assert source_name(place) == expected


def test_a_folder_gives_its_descriptors_and_nothing_else(tmp_path: Path, access: Access) -> None:
    root = tmp_path / "tools"
    for name, content in (
        ("b.json", RAW),
        ("a/tool.json", RAW),
        ("a/answers.json", OTHER),
        (".git/x.json", RAW),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "link.json").symlink_to(root / "b.json")
    found = [each.subject for each in find_candidates(str(root), access)]
    assert found == [str(root / "b.json"), str(root / "a" / "tool.json")]
    with pytest.raises(NotFoundError):
        list(find_candidates(f"{tmp_path}/absent/", access))


def test_descriptors_are_read_from_the_cache_of_bosh(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotFoundError):
        list(find_candidates("bosh:", access))
    cache = tmp_path / ".cache" / "boutiques" / "production"
    cache.mkdir(parents=True)
    (cache / "zenodo-12.json").write_bytes(RAW)
    assert [(each.subject, each.raw) for each in find_candidates("bosh:", access)] == [
        ("bosh:zenodo.12", RAW)
    ]
    assert [each.raw for each in find_candidates("bosh:zenodo.12", access)] == [RAW]
    with pytest.raises(UsageError):
        list(find_candidates("bosh:../../x", access))


def test_redirects_are_limited_and_checked() -> None:
    def answer(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/hop"):
            left = int(path[4:])
            return 302, {"Location": f"/hop{left - 1}" if left else "/tool.json"}, b""
        if path == "/elsewhere":
            return 302, {"Location": "http://127.0.0.2:9/x"}, b""
        if path == "/file":
            return 302, {"Location": "file:///etc/passwd"}, b""
        return (200, {}, RAW) if path == "/tool.json" else (404, {}, b"")

    with serving(answer) as origin:
        origins = frozenset({origin})
        assert fetch(f"{origin}/hop2", origins, 10_000) == RAW
        for path, code in (
            ("/hop3", "too-many-redirects"),
            ("/elsewhere", "not-https"),
            ("/file", "bad-url"),
            ("/absent", "not-there"),
        ):
            with pytest.raises(HibaliError) as refused:
                fetch(origin + path, origins, 10_000)
            assert refused.value.code == code
        with pytest.raises(RefusedError, match="larger than 10 bytes"):
            fetch(f"{origin}/tool.json", origins, 10)
        with pytest.raises(RefusedError, match="others can change the document"):
            fetch(f"{origin}/tool.json", frozenset(), 10_000)
    for url, code in (
        ("https://127.0.0.1:9/x", "private-address"),
        ("https://localhost/x", "private-address"),
        ("https://[::1]/x", "private-address"),
        ("https://169.254.169.254/latest", "private-address"),
        ("https://me:secret@example.org/x", "bad-url"),
        ("ftp://example.org/x", "bad-url"),
    ):
        with pytest.raises(HibaliError) as refused:
            fetch(url, frozenset(), 10)
        assert refused.value.code == code
        assert "secret" not in str(refused.value)


def record(origin: str, checksum: str) -> dict[str, Any]:
    """Return the used parts of a Zenodo record, in the form of its REST API (records, October 2025)."""
    files = [
        {
            "key": "tool.json",
            "checksum": checksum,
            "links": {"self": f"{origin}/api/records/7/files/tool.json/content"},
        },
        {
            "key": "answers.json",
            "checksum": "",
            "links": {"self": f"{origin}/api/records/7/files/answers.json/content"},
        },
        {"key": "readme.txt", "links": {}},
    ]
    return {"id": 7, "doi": "10.5281/zenodo.7", "metadata": {"title": "A tool"}, "files": files}


@pytest.mark.parametrize("place", ["zenodo.7", "zenodo:7", "10.5281/zenodo.7"])
def test_descriptors_are_read_from_zenodo(place: str, access: Access) -> None:
    checksum = f"md5:{hashlib.md5(RAW, usedforsecurity=False).hexdigest()}"

    def answer(path: str) -> tuple[int, dict[str, str], bytes]:
        contents = {
            "/api/records/7": json.dumps(record(origin, checksum)).encode(),
            "/api/records/7/files/tool.json/content": RAW,
            "/api/records/7/files/answers.json/content": OTHER,
        }
        return (200, {}, contents[path]) if path in contents else (404, {}, b"{}")

    with serving(answer) as origin:
        local = Access(access.scratch, origin, frozenset({origin}))
        for at in (place, f"{origin}/records/7"):
            assert [(each.subject, each.raw) for each in find_candidates(at, local)] == [
                ("zenodo.7/tool.json", RAW)
            ]
        for elsewhere in ("https://sandbox.zenodo.org/records/7", "10.5072/zenodo.7", f"{origin}0/record/7"):
            with pytest.raises(UsageError, match="no record of"):
                list(find_candidates(elsewhere, local))
        with pytest.raises(NotFoundError):
            list(find_candidates("zenodo.8", local))
        checksum = "md5:" + "0" * 32
        with pytest.raises(RefusedError, match="another md5"):
            list(find_candidates(place, local))


def test_the_descriptor_of_a_tool_configuration_is_read_from_cbrain(access: Access) -> None:
    def answer(path: str) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, RAW) if path == "/tool_configs/12/boutiques_descriptor" else (404, {}, b"{}")

    with serving(answer) as origin:
        portal = Access(access.scratch, origins=frozenset({origin}), cbrain=origin)
        assert [(each.subject, each.raw) for each in find_candidates("cbrain:12", portal)] == [
            ("cbrain:12", RAW)
        ]
        with pytest.raises(NotFoundError):
            list(find_candidates("cbrain:13", portal))
        with pytest.raises(UsageError, match="cbrain:123"):
            list(find_candidates("cbrain:../../sessions", portal))


def git(folder: Path, *arguments: str) -> None:
    person = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **person, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=environment)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "tool.json").write_bytes(RAW)
    (folder / "sub" / "two.json").write_bytes(RAW.replace(b"1.0", b"2.0"))
    (folder / "sub" / "answers.json").write_bytes(OTHER)
    (folder / "link.json").symlink_to("/etc/passwd")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "v1")
    (folder / "three.json").write_bytes(RAW.replace(b"1.0", b"3.0"))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "two")
    return folder


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["sub/two.json", "three.json", "tool.json"]),
        ("@v1", ["sub/two.json", "tool.json"]),
        ("@v1#sub", ["sub/two.json"]),
        ("#sub/", ["sub/two.json"]),
        ("#sub/two.json", ["sub/two.json"]),
    ],
)
def test_a_repository_gives_its_descriptors(
    repository: Path, access: Access, more: str, names: list[str]
) -> None:
    found = list(find_candidates(f"git+file://{repository}{more}", access))
    assert [each.subject.partition(": ")[2] for each in found] == names
    assert [each.origin.partition("#")[2] for each in found] == names
    assert all(each.raw.startswith(RAW[:10]) for each in found)
    assert list(access.scratch.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    [
        "git+ext::sh -c touch%20/tmp/sprung",
        "git+https://example.org/x@--upload-pack=touch",
        "git+file:///absent/repository",
        "git+--upload-pack=x",
    ],
)
def test_a_hostile_repository_runs_nothing(place: str, access: Access) -> None:
    with pytest.raises(HibaliError):
        list(find_candidates(place, access))
    assert list(access.scratch.iterdir()) == []


def test_a_missing_git_ref_is_reported(repository: Path, access: Access) -> None:
    with pytest.raises(NotFoundError, match="no such branch or tag"):
        list(find_candidates(f"git+file://{repository}@v9", access))


def niwrap(folder: Path) -> Path:
    """Make a repository with the layout of niwrap: two versions of a suite, and a suite without an image."""
    image = {"container": "lab/suite:6", "apps": ["bet"]}
    flag = make_input("f", "Flag", command_line_flag="-f")
    own = make_document("bet [A] [F]", make_input("a", mutable=True), flag, schema_version="0.5+styx")
    del own["tool-version"]
    own["output-files"] = [{"id": "a", "path-template": "[A].txt"}]
    files: dict[str, Any] = {
        "suite/package.json": {"name": "suite"},
        "suite/6.0/version.json": image,
        "suite/6.0/bet/boutiques.json": own,
        "suite/6.0/bet/app.json": {"name": "bet"},
        "suite/6.1/bet/boutiques.json": {**own, "output-files": []},
        "suite/6.0/nested/boutiques.json": {
            **own,
            "inputs": [make_input("a", type={"id": "b", "command-line": "b", "inputs": []})],
        },
        "suited/1/other/boutiques.json": own,
    }
    for name, content in files.items():
        path = folder / "src" / "niwrap" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("niwrap:suite/bet", ["suite/6.0/bet", "suite/6.1/bet"]),
        ("niwrap:suite/6.1", ["suite/6.1/bet"]),
        ("niwrap:suite/6.0/bet", ["suite/6.0/bet"]),
        ("niwrap@main:suite", ["suite/6.0/bet", "suite/6.0/nested", "suite/6.1/bet"]),
    ],
)
def test_tools_of_niwrap_are_found_in_a_clone(
    tmp_path: Path, access: Access, place: str, names: list[str]
) -> None:
    access = replace(access, niwrap=f"file://{niwrap(tmp_path / 'niwrap')}")
    found = list(find_candidates(place, access))
    assert [each.subject for each in found] == [f"niwrap:src/niwrap/{name}/boutiques.json" for name in names]


def test_a_tool_of_niwrap_becomes_a_descriptor_of_boutiques(tmp_path: Path, access: Access) -> None:
    folder = niwrap(tmp_path / "niwrap")
    head = subprocess.run(
        ["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    commit = head.stdout.strip()
    access = replace(access, niwrap=f"file://{folder}")
    [found] = find_candidates(f"niwrap@{commit}:suite/6.0/bet", access)
    assert found.name == "suite.bet"
    assert found.origin == f"git+file://{folder}@{commit}#src/niwrap/suite/6.0/bet/boutiques.json"
    assert [each.path for each in found.changes] == ["inputs[0].mutable", "output-files[0].id"]
    pipeline = read_descriptor(found.raw, found.subject, found.name)
    assert pipeline.reference == "suite.bet@6.0"
    assert pipeline.container is not None
    assert (pipeline.container.kind, pipeline.container.image) == ("docker", "lab/suite:6")
    assert [(each.id, each.optional) for each in pipeline.inputs] == [("a", False), ("f", True)]
    assert [each.id for each in pipeline.outputs] == ["a_output"]
    [nested] = find_candidates("niwrap:suite/nested", access)
    with pytest.raises(UsageError, match="command of its own"):
        read_descriptor(nested.raw, nested.subject, nested.name)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("niwrap:suite/none", "no-descriptor"),
        ("niwrap:../../etc", "bad-niwrap-tool"),
        ("niwrap:suite/6.0/bet/boutiques.json", "bad-niwrap-tool"),
        ("niwrap@--upload-pack=x:suite", "bad-niwrap-tool"),
        ("niwrap@v9:suite", "no-such-ref"),
    ],
)
def test_a_missing_tool_of_niwrap_is_reported(tmp_path: Path, access: Access, place: str, code: str) -> None:
    access = replace(access, niwrap=f"file://{niwrap(tmp_path / 'niwrap')}")
    with pytest.raises(HibaliError) as refused:
        list(find_candidates(place, access))
    assert refused.value.code == code
    assert list(access.scratch.iterdir()) == []
