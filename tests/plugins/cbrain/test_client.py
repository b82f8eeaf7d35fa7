"""Test the client of a CBRAIN portal: sessions, exact requests, lost answers and answers of wrong shapes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import parse_settings
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    RefusedError,
    TryLaterError,
)
from hibali_plugins.cbrain.client import CbrainClient
from hibali_plugins.cbrain.session import log_in, log_out, stored_token
from tests.services.cbrain import (
    DROPPED,
    EXPIRED,
    GARBAGE,
    LOST,
    PASSWORD,
    STATUS,
    CbrainDouble,
    RunningTask,
    TaskFailedError,
)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TEST_CBRAIN_SECRET", PASSWORD)


def site_of(portal: CbrainDouble, *, more: str = "") -> Any:
    text = f'[sites.lab]\nkind = "cbrain"\n[sites.lab.cbrain]\nurl = "{portal.url}"\n{more}'
    return parse_settings(text, Path("config.toml")).site("lab")


BY_PASSWORD = 'login = "me"\npassword_command = ["printenv", "TEST_CBRAIN_SECRET"]\n'


@pytest.fixture
def client(cbrain: CbrainDouble) -> Iterator[CbrainClient]:
    made = CbrainClient(site_of(cbrain, more=BY_PASSWORD))
    yield made
    made.close()
    assert cbrain.refused == []


def posts(portal: CbrainDouble, path: str) -> int:
    return portal.requests.count(f"POST {path}")


class Typed:
    """A user who types these answers (transfers.stores.login_protocol.Prompts)."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    def ask(self, prompt: str, *, hidden: bool = False) -> str:
        assert prompt
        assert hidden is (len(self._answers) == 1)
        return self._answers.pop(0)

    def show(self, message: str) -> None:
        raise AssertionError(message)


def test_threads_renew_an_expired_token_once(cbrain: CbrainDouble, client: CbrainClient) -> None:
    assert client.user_id() == cbrain.users[0].id
    cbrain.expire_tokens()
    ready = threading.Barrier(8)

    def ask(_: int) -> int:
        ready.wait()
        return client.user_id()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {cbrain.users[0].id}
    assert posts(cbrain, "/session") == 2


def test_another_process_uses_the_stored_token(cbrain: CbrainDouble, client: CbrainClient) -> None:
    client.user_id()
    other = CbrainClient(site_of(cbrain, more=BY_PASSWORD))
    assert other.user_id() == cbrain.users[0].id
    other.close()
    assert posts(cbrain, "/session") == 1


def test_a_token_of_another_address_names_the_command_to_type(cbrain: CbrainDouble) -> None:
    site = site_of(cbrain)
    log_in(site, Typed("me", PASSWORD))
    cbrain.address = "192.0.2.7"
    client = CbrainClient(site)
    with pytest.raises(AccessError) as caught:
        client.user_id()
    client.close()
    assert (caught.value.code, caught.value.hint) == ("token-rejected", "To log in: hibali sites login lab")
    assert "IP address" in caught.value.message


def test_without_a_login_the_command_to_type_is_named(cbrain: CbrainDouble) -> None:
    client = CbrainClient(site_of(cbrain))
    with pytest.raises(AccessError) as caught:
        client.user_id()
    client.close()
    assert (caught.value.code, caught.value.hint) == (
        "cbrain-login-needed",
        "To log in: hibali sites login lab",
    )
    assert cbrain.requests == []


def test_a_refused_password_is_tried_once_and_not_shown(cbrain: CbrainDouble) -> None:
    with pytest.raises(AccessError) as caught:
        log_in(site_of(cbrain), Typed("me", "planted-secret-2"))
    assert caught.value.code == "cbrain-login-refused"
    assert "planted" not in f"{caught.value.message}{caught.value.hint}"
    assert posts(cbrain, "/session") == 1


def test_login_and_logout_keep_and_remove_the_token(cbrain: CbrainDouble, tmp_path: Path) -> None:
    site = site_of(cbrain)
    assert log_in(site, Typed("me", PASSWORD)).change == "logged in"
    assert log_in(site, Typed("", "")).change == "same"
    file = tmp_path / "state" / "cbrain" / "lab.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(RefusedError) as caught:
        stored_token(site)
    assert caught.value.code == "not-private"
    file.chmod(0o600)
    assert log_out(site).change == "logged out"
    assert not file.exists()
    assert log_out(site).change == "same"


def test_a_token_for_another_portal_is_not_sent(cbrain: CbrainDouble) -> None:
    log_in(site_of(cbrain), Typed("me", PASSWORD))
    other = parse_settings(
        '[sites.lab]\nkind = "cbrain"\n[sites.lab.cbrain]\nurl = "https://other.example"\n', Path("c")
    )
    assert stored_token(other.site("lab")) == ""


def test_lists_are_read_to_the_end_also_in_small_pages(cbrain: CbrainDouble, client: CbrainClient) -> None:
    lab = cbrain.add_provider("lab")
    for number in range(25):
        cbrain.add_userfile(lab, f"f{number}.txt", b"x")
    cbrain.page_limit = 10
    assert sorted(each.name for each in client.userfiles()) == sorted(f"f{n}.txt" for n in range(25))
    assert [each.name for each in client.data_providers()] == ["lab"]
    assert {each.type for each in client.groups()} == {"EveryoneGroup", "UserGroup"}


def test_an_expired_token_in_the_middle_of_a_list_is_renewed(
    cbrain: CbrainDouble, client: CbrainClient
) -> None:
    lab = cbrain.add_provider("lab")
    for number in range(25):
        cbrain.add_userfile(lab, f"f{number}.txt", b"x")
    cbrain.page_limit = 10
    cbrain.fail("GET", "/userfiles", EXPIRED, after=1)
    assert len(list(client.userfiles())) == 25


def test_a_busy_portal_is_asked_again_when_it_says(cbrain: CbrainDouble, client: CbrainClient) -> None:
    cbrain.fail("GET", "/session", STATUS, status=429, retry_after=1)
    cbrain.fail("GET", "/session", STATUS, status=503, retry_after=1)
    assert client.user_id() == cbrain.users[0].id


def test_uploads_and_tasks_are_not_sent_twice(cbrain: CbrainDouble, client: CbrainClient) -> None:
    lab, tool = cbrain.add_provider("lab"), cbrain.add_tool("bet")
    client.user_id()
    upload = {"provider_id": lab.id, "group_id": cbrain.users[0].group_id, "file_type": "TextFile"}
    cbrain.fail("POST", "/userfiles", LOST)
    with pytest.raises(TryLaterError) as caught:
        client.upload("a.txt", [b"abc"], 3, **upload)  # type: ignore[arg-type]
    assert not caught.value.transient
    cbrain.fail("POST", "/tasks", LOST)
    with pytest.raises(TryLaterError) as caught:
        client.create_task(
            tool_config_id=tool.config_id,
            results_provider_id=lab.id,
            group_id=cbrain.users[0].group_id,
            description="mark",
            params={},
        )
    assert not caught.value.transient
    assert (posts(cbrain, "/userfiles"), posts(cbrain, "/tasks")) == (1, 1)
    assert [task.description for task in client.tasks()] == ["mark"]


def test_a_throttled_task_is_sent_again(cbrain: CbrainDouble, client: CbrainClient) -> None:
    lab, tool = cbrain.add_provider("lab"), cbrain.add_tool("bet")
    cbrain.fail("POST", "/tasks", STATUS, status=429, retry_after=0)
    cbrain.fail("POST", "/tasks", EXPIRED)
    made = client.create_task(
        tool_config_id=tool.config_id,
        results_provider_id=lab.id,
        group_id=cbrain.users[0].group_id,
        description="mark",
        params={"interface_userfile_ids": []},
    )
    assert [(task.status, task.description) for task in made] == [("New", "mark")]
    assert len(cbrain.tasks) == 1


def test_a_task_runs_to_its_outputs(cbrain: CbrainDouble, client: CbrainClient) -> None:
    lab, tool = cbrain.add_provider("lab"), cbrain.add_tool("upper", {"name": "upper", "inputs": []})
    given = cbrain.add_userfile(lab, "a.txt", b"abc")

    def upper(running: RunningTask) -> dict[str, list[tuple[str, bytes]]]:
        name, content = running.inputs[given.id]
        assert isinstance(content, bytes)
        if running.invoke.get("fails"):
            raise TaskFailedError
        return {"out": [(f"upper-{name}", content.upper())]}

    cbrain.runner = upper
    made = [
        client.create_task(
            tool_config_id=tool.config_id,
            results_provider_id=lab.id,
            group_id=cbrain.users[0].group_id,
            description="mark",
            params={"interface_userfile_ids": [given.id], "invoke": invoke},
        )[0]
        for invoke in ({}, {"fails": True}, {})
    ]
    assert client.terminate_tasks([made[2].id]).accepted == (made[2].id,)
    assert client.terminate_tasks([made[2].id]).skipped == 1
    states = [[client.task(task.id).status for _ in range(5)] for task in made]
    assert states[0] == ["Queued", "On CPU", "Data Ready", "Post Processing", "Completed"]
    assert states[1][-1] == "Failed On Cluster"
    assert states[2] == ["Terminated"] * 5
    [output] = client.task(made[0].id).outputs["out"]
    found: list[bytes] = []
    client.receive_content(output, found.append, limit=100, restart=found.clear)
    assert b"".join(found) == b"ABC"


def test_refused_tasks_name_the_fields(cbrain: CbrainDouble, client: CbrainClient) -> None:
    tool = cbrain.add_tool("bet")
    with pytest.raises(RefusedError, match="results_data_provider_id must be provided"):
        client.create_task(
            tool_config_id=tool.config_id,
            results_provider_id=1,
            group_id=1,
            description="",
            params={},
        )


def test_descriptors_need_no_login(cbrain: CbrainDouble) -> None:
    with_descriptor, without = cbrain.add_tool("bet", {"name": "bet"}), cbrain.add_tool("old")
    client = CbrainClient(site_of(cbrain))
    assert client.boutiques_descriptor(with_descriptor.config_id) == {"name": "bet"}
    assert client.boutiques_descriptor(without.config_id) is None
    client.close()


def test_files_are_uploaded_described_and_deleted(cbrain: CbrainDouble, client: CbrainClient) -> None:
    lab = cbrain.add_provider("lab")
    client.upload(
        "a.nii.gz",
        iter([b"ab", b"c"]),
        3,
        provider_id=lab.id,
        group_id=cbrain.users[0].group_id,
        file_type="NiftiFile",
    )
    [made] = list(client.userfiles())
    [made] = list(client.userfiles())
    assert (made.name, made.type, made.size) == ("a.nii.gz", "NiftiFile", 3)
    client.describe_userfile(made.id, "hello")
    client.retype_userfile(made.id, "TextFile")
    assert (client.userfile(made.id).description, client.userfile(made.id).type) == ("hello", "TextFile")
    with pytest.raises(RefusedError, match="already been taken"):
        client.upload("a.nii.gz", [b""], 0, provider_id=lab.id, group_id=1, file_type="TextFile")
    activity = client.delete_userfiles([made.id, 1]).activity
    assert activity is not None
    while not (found := client.activity(activity)) or not found.is_over:
        pass
    with pytest.raises(RefusedError, match="No appropriate files"):
        client.delete_userfiles([made.id])
    assert lab.contents.names() == {}


def test_names_are_registered_once(cbrain: CbrainDouble, client: CbrainClient) -> None:
    lab = cbrain.add_provider("lab")
    for name in ("a.txt", "b.log"):
        lab.contents.write(name, b"abc")
    types = {"a.txt": "TextFile", "b.log": "LogFile", "c.txt": "NoSuchType"}
    first = client.register(lab.id, types, cbrain.users[0].group_id)
    assert (first.new, first.known) == ((), ())
    assert first.activity is not None
    while not (found := client.activity(first.activity)) or not found.is_over:
        pass
    assert "Type is not a valid file type" in found.messages
    again = client.register(lab.id, types, cbrain.users[0].group_id)
    assert {each.name: each.type for each in again.known} == {"a.txt": "TextFile", "b.log": "LogFile"}
    cbrain.synchronous = True
    lab.contents.write("d.txt", b"abc")
    early = client.register(lab.id, {"d.txt": "TextFile"}, cbrain.users[0].group_id)
    assert ([each.name for each in early.new], early.activity) == (["d.txt"], None)


@pytest.mark.parametrize("content", [b"[1]", b'[{"id": "7"}]', b'[{"id": 7}]', b'{"id": 7}', b"[[]]", b"x"])
def test_wrong_shapes_are_named(
    client: CbrainClient, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hibali.http.client import HttpClient, Response

    monkeypatch.setattr(HttpClient, "request", lambda *_, **__: Response(200, {}, content))
    with pytest.raises(IncompleteError) as caught:
        list(client.userfiles())
    assert caught.value.code == "bad-answer"


def test_an_answer_that_is_no_json_is_named(cbrain: CbrainDouble, client: CbrainClient) -> None:
    cbrain.fail("GET", "/groups", GARBAGE)
    with pytest.raises(IncompleteError) as caught:
        client.groups()
    assert caught.value.code == "bad-answer"


def test_a_lost_connection_is_tried_again(cbrain: CbrainDouble, client: CbrainClient) -> None:
    client.user_id()
    cbrain.fail("GET", "/groups", DROPPED, times=2)
    assert client.groups()


def test_the_double_bans_after_three_unexpected_parameters(cbrain: CbrainDouble) -> None:
    site = site_of(cbrain, more=BY_PASSWORD)
    client = CbrainClient(site)
    for _ in range(3):
        with pytest.raises(HibaliError):
            client._portal.get("/userfiles", query={"data_provider_id": 1})
    with pytest.raises(AccessError):
        client.groups()
    client.close()
    assert len(cbrain.refused) == 3
