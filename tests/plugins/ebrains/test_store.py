"""Test sites of the EBRAINS data proxy without its double: settings, tokens, hostile answers, consent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import SettingsError, parse_settings
from hibali.errors import AccessError, HibaliError, IncompleteError, RefusedError, TryLaterError, UsageError
from hibali.locations import Location
from hibali_plugins.ebrains.kind import open_store
from hibali_plugins.ebrains.objects import time_of
from hibali_plugins.ebrains.probe import is_operation
from hibali_plugins.ebrains.settings import TOKEN_URL, URL, EbrainsSettings
from hibali_plugins.ebrains.store import EbrainsStore
from tests.support.scripted_server import ScriptedServer
from transfers.model.entry import Entry, Kind
from transfers.model.facts import name_problem
from transfers.model.units import Item, ListingIncompleteError, Unit
from transfers.stores.bearer.tokens import Tokens, read_token

DATASET = "131add71-e838-4dab-b953-7b7a69ac5d8f"
ROW = {"name": "a", "bytes": 3, "hash": "e", "last_modified": "2026-01-02T03:04:05.123456"}
GOOD = {**ROW, "name": "data/good"}
Answer = tuple[int, dict[str, str], bytes]


def site_of(text: str) -> Any:
    document = f'version = 1\n[sites.lab]\nkind = "ebrains"\n[sites.lab.ebrains]\n{text}\n'
    return parse_settings(document, Path("config.toml")).sites["lab"]


def settings_of(text: str) -> EbrainsSettings:
    own: EbrainsSettings = site_of(text).own
    return own


@pytest.mark.parametrize(
    "text",
    [
        "",
        'bucket = "a/b"',
        f'bucket = "a"\ndataset = "{DATASET}"',
        'dataset = "131add71-e838-4dab-b953-7b7a69"',
        'bucket = "a"\nurl = "http://data-proxy.example.org/api"',
        'bucket = "a"\nurl = "https://me:planted@data-proxy.example.org/api"',
        'bucket = "a"\nurl = "aws"',
        'bucket = "a"\ntoken = "planted"',
        'bucket = "a"\ntoken_variable = "not a name"',
        'bucket = "a"\ntoken_command = ["x"]\ntoken_variable = "X"',
        'bucket = "a"\nrefresh_variable = "X"',
        'bucket = "a"\nclient_id = "me"',
        'bucket = "a"\nclient_id = "me"\nrefresh_variable = "X"\ntoken_url = "http://iam.example.org/token"',
    ],
)
def test_invalid_settings_are_refused(text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings_of(text)
    assert "planted" not in str(raised.value)


def test_settings_have_the_addresses_of_ebrains() -> None:
    found = settings_of(f'dataset = "{DATASET.upper()}"\nclient_id = "me"\nrefresh_keyring = "ebrains"')
    assert (found.url, found.login.token_url) == (URL, TOKEN_URL)
    assert found.resource == f"datasets/{DATASET}"
    assert (found.has_login, found.login.source) == (True, "refresh")
    public = settings_of('bucket = "p22717-hbp-d000070_BigBrain-selected_1um_scans_pub"')
    assert not public.has_login


@pytest.mark.parametrize(
    ("text", "token"),
    [
        (b"abc\n", "abc"),
        (b" abc \nsecond line\n", "abc"),
        (b'{"token": "abc"}', "abc"),
        (b'{"access_token": "abc", "expires_in": 3}\n', "abc"),
    ],
)
def test_a_token_is_read_from_text_or_json(text: bytes, token: str) -> None:
    assert read_token(text) == token


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"two words", b"a\tb", "ü".encode(), b"{", b"{}", b'{"token": 3}', b"x" * 100_000]
)
def test_other_text_is_no_token(text: bytes) -> None:
    with pytest.raises(ValueError, match="its output") as raised:
        read_token(text)
    assert "two words" not in str(raised.value)


def test_several_threads_renew_a_token_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"echo x >> {log}; wc -l < {log}"
    tokens = Tokens(
        settings_of(f'bucket = "a"\ntoken_command = {json.dumps(["sh", "-c", script])}').login, "lab"
    )
    assert tokens.current() == "1"
    found: list[str] = []
    together = threading.Barrier(8)

    def renew() -> None:
        together.wait()
        found.append(tokens.renew("1"))

    threads = [threading.Thread(target=renew) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["2"] * 8
    assert tokens.current() == "2"
    assert tokens.renew("1") == "2", "another thread renewed it before"


def test_a_token_that_cannot_be_renewed_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Tokens(settings_of('bucket = "a"\ntoken_command = ["echo", "planted-token"]').login, "lab")
    monkeypatch.setenv("EBRAINS_TEST_TOKEN", "planted-token")
    fixed = Tokens(settings_of('bucket = "a"\ntoken_variable = "EBRAINS_TEST_TOKEN"').login, "lab")
    for tokens in (same, fixed):
        with pytest.raises(AccessError) as raised:
            tokens.renew(tokens.current())
        assert raised.value.code == "expired"
        assert "planted" not in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        'token_variable = "EBRAINS_TEST_NOTHING"',
        'token_command = ["false"]',
        'token_command = ["echo", "two words"]',
        'client_id = "me"\nrefresh_variable = "EBRAINS_TEST_NOTHING"',
    ],
)
def test_a_missing_token_is_a_missing_access(text: str, hibali_home: Any) -> None:
    assert hibali_home
    with pytest.raises(AccessError) as raised:
        Tokens(settings_of(f'bucket = "a"\n{text}').login, "lab").current()
    assert raised.value.code in {"no-secret", "no-credentials"}


Respond = Callable[[str, str, dict[str, list[str]]], Answer]
Open = Callable[..., EbrainsStore]


@pytest.fixture
def opened(server: ScriptedServer, hibali_home: Any) -> Iterator[Open]:
    """Return a function that opens a store at the server, whose answers `respond` computes."""
    assert hibali_home
    made: list[EbrainsStore] = []

    def open_at(respond: Respond, text: str = 'bucket = "b"', root: str = "") -> EbrainsStore:
        server.respond = respond
        site = site_of(f'{text}\nurl = "{server.url}/api"')
        made.append(open_store(Location(site, root, f"lab:{root}")))
        return made[-1]

    yield open_at
    for store in made:
        store.close()


def json_answer(record: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(record).encode()


def pages_of(rows: list[Any], query: dict[str, list[str]], most: int = 1000) -> Answer:
    """Answer with the next page of a listing."""
    prefix, marker = (query.get(name, [""])[0] for name in ("prefix", "marker"))
    named = [(row.get("name") or row["subdir"], row) for row in rows]
    found = [row for name, row in named if name.startswith(prefix) and name > marker]
    return json_answer({"objects": found[:most]})


def once(rows: list[Any], most: int = 1000) -> Respond:
    """Answer to every request for a listing."""
    return lambda _, __, query: pages_of(rows, query, most)


def read(store: EbrainsStore, entry: Entry) -> Any:
    (payload,) = store.read(iter([Unit((Item(0, entry),))]))
    return payload


def object_at(server: ScriptedServer, content: bytes, **headers: str) -> Respond:
    """Answer to a listing, to a request for an address, and to a GET there."""

    def respond(method: str, path: str, query: dict[str, list[str]]) -> Answer:
        del method
        if path == "/object":
            first = {"Content-Range": f"bytes 0-{len(content) - 1}/{len(content)}", "ETag": '"e"'}
            return 206, {**first, **headers}, content
        if path == "/api/v1/buckets/b":
            return once([ROW])("", path, query)
        return json_answer({"url": f"{server.url}/object"})

    return respond


def test_an_object_is_read_without_a_token_at_its_host(server: ScriptedServer, opened: Open) -> None:
    store = opened(object_at(server, b"123"), 'bucket = "b"\ntoken_command = ["echo", "planted-token"]')
    [entry] = store.list()
    assert (entry.path, entry.size, entry.mtime_ns) == (b"a", 3, 1767323045123456000)
    assert bytes(read(store, entry).data) == b"123"
    sent = [headers.get("authorization") for headers in server.headers]
    paths = [path for _, path in server.seen]
    assert {authorization for path, authorization in zip(paths, sent, strict=True) if path == "/object"} == {
        None
    }
    assert {authorization for path, authorization in zip(paths, sent, strict=True) if path != "/object"} == {
        "Bearer planted-token"
    }
    assert {method for method, _ in server.seen} == {"GET"}


def test_a_redirect_to_the_object_is_accepted_as_its_address(server: ScriptedServer, opened: Open) -> None:
    inner = object_at(server, b"123")

    def respond(method: str, path: str, query: dict[str, list[str]]) -> Answer:
        if path == "/api/v1/buckets/b/a":
            return 307, {"Location": f"{server.url}/object"}, b""
        return inner(method, path, query)

    store = opened(respond)
    assert bytes(read(store, next(iter(store.list()))).data) == b"123"


@pytest.mark.parametrize(
    "address",
    [
        "http://objects.example.org/x",
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "https://me:secret@objects.example.org/x",
        "https:///x",
        "https://objects.example.org:port/x",
        "https://objects.example.org/x\r\nX: y",
        "https://objects.example.org/" + "x" * 20_000,
        "",
        None,
        3,
        ["https://objects.example.org/x"],
    ],
)
def test_unsafe_addresses_are_not_contacted(address: Any, opened: Open) -> None:
    def respond(_: str, path: str, query: dict[str, list[str]]) -> Answer:
        return once([ROW])("", path, query) if path.endswith("/b") else json_answer({"url": address})

    store = opened(respond)
    [entry] = store.list()
    assert read(store, entry).problems[0].code == "unsafe-address"


def test_an_address_on_this_machine_is_only_for_a_service_on_it() -> None:
    from hibali_plugins.ebrains.requests import DataProxy

    proxy = DataProxy(settings_of('bucket = "b"'), "lab")
    assert (
        proxy._addresses.checked("https://objects.example.org/x?y=z") == "https://objects.example.org/x?y=z"
    )
    for address in ("http://127.0.0.1:80/x", "http://localhost/x", "http://[::1]/x"):
        with pytest.raises(IncompleteError) as raised:
            proxy._addresses.checked(address)
        assert raised.value.code == "unsafe-address"
        assert address not in str(raised.value)
    proxy.close()


def test_redirects_are_not_followed(server: ScriptedServer, opened: Open) -> None:
    store = opened(lambda *_: (302, {"Location": f"{server.url}/elsewhere"}, b""))
    with pytest.raises(UsageError) as raised:
        list(store.list())
    assert raised.value.code == "wrong-endpoint"
    assert [path.partition("?")[0] for _, path in server.seen] == ["/api/v1/buckets/b"]


@pytest.mark.parametrize(
    "row",
    [
        "a",
        {},
        {**ROW, "name": 3},
        {**ROW, "name": "\ud800"},
        {**ROW, "name": "other/a"},
        {**GOOD, "bytes": -1},
        {**GOOD, "bytes": True},
        {**GOOD, "bytes": "3"},
        {**GOOD, "bytes": 1.5},
        {"subdir": "data/x"},
        {"subdir": 3},
    ],
)
def test_a_malformed_listing_is_a_violation(row: Any, opened: Open) -> None:
    store = opened(lambda *_: json_answer({"objects": [GOOD, row]}), root="data")
    with pytest.raises(IncompleteError) as raised:
        list(store.list())
    assert raised.value.code == "listing-violation"


@pytest.mark.parametrize("record", [{}, {"objects": 3}, {"objects": {"a": 1}}])
def test_an_answer_without_objects_is_a_violation(record: Any, opened: Open) -> None:
    with pytest.raises(IncompleteError) as raised:
        list(opened(lambda *_: json_answer(record)).list())
    assert raised.value.code == "listing-violation"


@pytest.mark.parametrize(
    "body", [b"", b"<html>log in</html>", b"[]", b"[" * 100_000, b'{"objects": ' + b"9" * 5000 + b"}"]
)
def test_an_answer_that_is_no_json_object_is_named(body: bytes, opened: Open) -> None:
    with pytest.raises(TryLaterError) as raised:
        list(opened(lambda *_: (200, {}, body)).list())
    assert raised.value.code == "bad-answer"


def test_pages_that_repeat_are_a_violation(opened: Open) -> None:
    store = opened(lambda *_: json_answer({"objects": [ROW]}))
    with pytest.raises(IncompleteError) as raised:
        list(store.list())
    assert raised.value.code == "listing-violation"


def test_short_pages_are_not_the_end(opened: Open) -> None:
    names = [f"n{number:02}" for number in range(7)]

    store = opened(once([{**ROW, "name": name} for name in names], most=3))
    assert [entry.name for entry in store.list()] == names


@pytest.mark.parametrize("groups", [True, False])
def test_folders_are_listed_once_with_and_without_the_help_of_the_service(
    groups: bool, server: ScriptedServer, opened: Open
) -> None:
    names = ["a-x", "a/1", "a/2", "a/3", "b", "b/1", "c/1", "d"]
    shown = ["a-x", "a/", "b", "b/", "c/", "d"] if groups else names
    rows = [{"subdir": name} if name.endswith("/") else {**ROW, "name": name} for name in shown]
    store = opened(once(rows, most=2))
    found = [(entry.name, entry.kind) for entry in store.list(shallow=True)]
    assert "delimiter=/" in server.seen[0][1].replace("%2F", "/")
    folder, file = Kind.FOLDER, Kind.FILE
    assert found == [("a-x", file), ("a", folder), ("b", file), ("b", folder), ("c", folder), ("d", file)]


@pytest.mark.parametrize("name", ["../out", "a//b", "/a", "a/../b", "."])
def test_keys_that_climb_are_reported(name: str, opened: Open) -> None:
    with pytest.raises(ListingIncompleteError) as raised:
        list(opened(once([{**ROW, "name": name}])).list())
    ((path, problem),) = raised.value.unlisted
    assert (path.decode(), problem.code) == (name, "unsafe-name")


def test_a_folder_marker_is_a_folder(opened: Open) -> None:
    rows = [{**ROW, "name": "x/", "bytes": 0}, {**ROW, "name": "x/a"}]
    found = [(entry.path, entry.kind) for entry in opened(once(rows)).list()]
    assert found == [(b"x", Kind.FOLDER), (b"x/a", Kind.FILE)]


def test_names_of_operations_are_not_written(opened: Open) -> None:
    """A PUT of KEY/copy copies the object KEY, and KEY/multipart begins an upload of it."""
    operations = [b"a/copy", b"a/multipart", b"a/multipart/x", b"a/multipart/x/1"]
    assert [is_operation(key) for key in operations] == [True] * 4
    assert not any(map(is_operation, (b"copy", b"a/copy/b", b"a/copies", b"multipart", b"a/multipart/x/y/z")))
    store = opened(once([]), 'bucket = "b"\ntoken_command = ["echo", "x"]', "data")
    for path in (b"copy", b"a/copy", b"multipart", b"x/multipart/1"):
        assert name_problem(path, store.facts) is not None, path
    with pytest.raises(RefusedError):
        store._target_path(b"multipart/1")
    with pytest.raises(RefusedError):
        opened(once([]))._path(b"stat")


def test_a_time_without_a_zone_is_utc() -> None:
    assert time_of("2021-03-05T10:11:12.345670") == 1614939072345670000
    assert time_of("2021-03-05T10:11:12.345Z") == 1614939072345000000
    assert [time_of(text) for text in ("", "yesterday", "9999-99-99")] == [0, 0, 0]


def test_a_long_pause_ends_the_command_and_a_short_one_is_kept(opened: Open) -> None:
    answers = [(429, {"Retry-After": "0"}, b""), (429, {"Retry-After": "3600"}, b"")]
    store = opened(lambda *_: answers.pop(0))
    with pytest.raises(TryLaterError) as raised:
        list(store.list())
    assert (raised.value.code, raised.value.transient) == ("busy", False)
    assert "3600" in raised.value.message
    assert answers == []


def test_a_public_bucket_needs_no_login_and_is_not_written(server: ScriptedServer, opened: Open) -> None:
    store = opened(once([ROW]))
    assert len(list(store.list())) == 1
    assert not store.facts.writable
    assert not any("authorization" in headers for headers in server.headers)
    for act in (lambda: store.lock("test"), store.make_root, lambda: list(store.write(iter(())))):
        with pytest.raises(RefusedError) as raised:
            act()
        assert raised.value.code == "read-only-site"


def test_a_bucket_that_needs_a_login_says_so(opened: Open) -> None:
    with pytest.raises(AccessError) as raised:
        list(opened(lambda *_: json_answer({"detail": "Not authenticated"}, 401)).list())
    assert raised.value.code == "no-credentials"


def guarded(answers: dict[str, Answer]) -> Respond:
    pending = {"detail": "restricted", "can_request_access": True}
    return lambda method, *_: answers.get(method, json_answer(pending, 401))


LOGIN = f'dataset = "{DATASET}"\ntoken_command = ["echo", "x"]'


def test_access_is_requested_once_a_day(server: ScriptedServer, opened: Open, hibali_home: Any) -> None:
    respond = guarded({"POST": json_answer({})})

    def pending() -> TryLaterError:
        with pytest.raises(TryLaterError) as raised:
            list(opened(respond, LOGIN).list())
        assert (raised.value.code, raised.value.transient) == ("consent-pending", False)
        return raised.value

    assert "hibali requested access for you" in pending().message
    assert "access was requested at" in pending().message
    assert [method for method, _ in server.seen] == ["GET", "POST", "GET"]
    [record] = (hibali_home.state / "ebrains").rglob("asked.json")
    found = json.loads(record.read_text())
    late = datetime.now(UTC) - timedelta(hours=25)
    record.write_text(json.dumps({**found, "at": late.isoformat()}))
    assert "hibali requested access for you" in pending().message
    assert [method for method, _ in server.seen].count("POST") == 2
    server.respond = once([ROW])
    assert len(list(opened(server.respond, LOGIN).list())) == 1
    assert not record.exists()


def test_the_reason_may_be_inside_of_the_detail(opened: Open) -> None:
    nested = json_answer({"detail": {"can_request_access": True}}, 422)
    respond = guarded({"GET": nested, "POST": json_answer({})})
    with pytest.raises(TryLaterError) as raised:
        list(opened(respond, LOGIN).list())
    assert raised.value.code == "consent-pending"


@pytest.mark.parametrize("answer", [json_answer({}, 500), json_answer({}, 403)])
def test_a_request_for_access_that_fails_is_sent_once(
    answer: Answer, server: ScriptedServer, opened: Open, hibali_home: Any
) -> None:
    with pytest.raises(HibaliError) as raised:
        list(opened(guarded({"POST": answer}), LOGIN).list())
    assert raised.value.code != "consent-pending"
    assert [method for method, _ in server.seen] == ["GET", "POST"]
    assert not list((hibali_home.state / "ebrains").rglob("asked.json"))


def test_access_is_not_requested_without_a_login(server: ScriptedServer, opened: Open) -> None:
    with pytest.raises(AccessError) as raised:
        list(opened(guarded({"POST": json_answer({})}), f'dataset = "{DATASET}"').list())
    assert raised.value.code == "no-credentials"
    assert [method for method, _ in server.seen] == ["GET"]


def test_a_dataset_that_cannot_be_requested_is_denied(server: ScriptedServer, opened: Open) -> None:
    respond = guarded({"GET": json_answer({"can_request_access": False}, 401)})
    with pytest.raises(AccessError) as raised:
        list(opened(respond, f'dataset = "{DATASET}"\ntoken_command = ["mktemp", "-u"]').list())
    assert raised.value.code == "denied"
    assert {method for method, _ in server.seen} == {"GET"}


def test_a_rotated_refresh_token_is_kept_private(
    server: ScriptedServer, hibali_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBRAINS_TEST_REFRESH", "planted-refresh-0")
    given: list[str] = []

    def respond(method: str, path: str, query: dict[str, list[str]]) -> Answer:
        del method, path, query
        given.append("")
        return json_answer(
            {"access_token": f"access-{len(given)}", "refresh_token": f"planted-refresh-{len(given)}"}
        )

    server.respond = respond
    text = f'bucket = "b"\nclient_id = "me"\nrefresh_variable = "EBRAINS_TEST_REFRESH"\ntoken_url = "{server.url}/token"'
    assert Tokens(settings_of(text).login, "lab").current() == "access-1"
    assert Tokens(settings_of(text).login, "lab").current() == "access-2"
    [kept] = (hibali_home.state / "bearer").rglob("refresh.json")
    assert json.loads(kept.read_bytes()) == {"token": "planted-refresh-2"}
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (json_answer({"error": "invalid_grant"}, 400), "login-expired"),
        (json_answer({"token": "x"}), "bad-answer"),
        ((200, {}, b"<html>"), "bad-answer"),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "wrong-endpoint"),
    ],
)
def test_a_refused_refresh_token_is_named(
    answer: Answer, code: str, server: ScriptedServer, hibali_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hibali_home
    monkeypatch.setenv("EBRAINS_TEST_REFRESH", "planted-refresh-0")
    server.respond = lambda *_: answer
    text = f'bucket = "b"\nclient_id = "me"\nrefresh_variable = "EBRAINS_TEST_REFRESH"\ntoken_url = "{server.url}/token"'
    with pytest.raises(HibaliError) as raised:
        Tokens(settings_of(text).login, "lab").current()
    assert raised.value.code == code
    assert "planted" not in f"{raised.value} {raised.value.hint}"
