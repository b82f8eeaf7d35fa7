"""Test the double of Globus with the SDK: transfers, faults, tokens and consents."""

from __future__ import annotations

import hashlib
import os
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import globus_sdk
import pytest
from globus_sdk.login_flows import CommandLineLoginFlowManager
from globus_sdk.scopes import GCSCollectionScopes, TransferScopes
from globus_sdk.token_storage import MemoryTokenStorage

from tests.services.globus import Globus, MadeCollection


@pytest.fixture
def transfer(globus: Globus, monkeypatch: pytest.MonkeyPatch) -> Iterator[globus_sdk.TransferClient]:
    for name, value in globus.env.items():
        monkeypatch.setenv(name, value)
    config = globus_sdk.GlobusAppConfig(token_storage=MemoryTokenStorage())
    with globus_sdk.ClientApp(
        "test", client_id=globus.client_id, client_secret=globus.client_secret, config=config
    ) as app:
        yield globus_sdk.TransferClient(app=app)


def _task(here: MadeCollection, target: MadeCollection, *items: tuple[str, str], **options: Any) -> Any:
    options = {"verify_checksum": True, **options}
    data = globus_sdk.TransferData(here.id, target.id, **options)
    for source, destination in items:
        data.add_item(source, destination)
    return data


def _two(globus: Globus, folder: Path) -> tuple[MadeCollection, MadeCollection]:
    for name in ("one", "two", "in/three", "in/ünïcode 'x'"):
        path = folder / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    return globus.make_collection(folder / "a"), globus.make_collection(folder / "b")


def test_bytes_move_once_for_each_submission_id(
    globus: Globus, transfer: globus_sdk.TransferClient, tmp_path: Path
) -> None:
    here, target = _two(globus, tmp_path)
    data = _task(here, target, ("/", "/got/"), preserve_timestamp=True)
    data["submission_id"] = transfer.get_submission_id()["value"]
    held = globus.fault("held")
    lost = globus.fault("lost_answer", times=1)
    again = transfer.submit_transfer(data)  # the SDK retries when a connection is closed
    assert (again["code"], lost.hits) == ("Duplicate", 1)
    other = _task(here, target, ("/", "/got/"))
    with pytest.raises(globus_sdk.TransferAPIError) as refused:
        transfer.submit_transfer(other)
    assert (refused.value.http_status, refused.value.code) == (409, "Conflict")
    assert [line["code"] for line in globus.submissions()] == ["Accepted", "Duplicate", "Conflict"]
    held.clear()
    assert transfer.task_wait(again["task_id"], timeout=20, polling_interval=1)
    done = transfer.get_task(again["task_id"])
    assert (done["status"], done["files_transferred"], done["directories"]) == ("SUCCEEDED", 4, 2)
    assert (target.root / "got/in/ünïcode 'x'").read_bytes() == "in/ünïcode 'x'".encode() * 1000
    moved = {item["destination_path"] for item in transfer.task_successful_transfers(again["task_id"])}
    assert moved == {"/got/one", "/got/two", "/got/in/three", "/got/in/ünïcode 'x'"}
    listed = transfer.operation_ls(target.id, path="/got/", limit=2, offset=1)
    assert [file["name"] for file in listed] == ["one", "two"]
    transfer.operation_rename(target.id, "/got/one", "/got/uno")
    transfer.operation_mkdir(target.id, "/made")
    delete = globus_sdk.DeleteData(target.id, recursive=True)
    delete.add_item("/got")
    globus.wait(transfer.submit_delete(delete)["task_id"])
    assert [path.name for path in target.root.iterdir()] == ["made"]
    assert len(globus.tasks()) == 2


def test_faults_are_told_while_the_task_is_tried_again_and_fatal_ones_end_it(
    globus: Globus, transfer: globus_sdk.TransferClient, tmp_path: Path
) -> None:
    here, target = _two(globus, tmp_path)
    quota = globus.fault("quota", collection=target.id, path="/x/two")
    wire = globus.fault("checksum", path="/x/one", times=1)
    task = transfer.submit_transfer(_task(here, target, ("/one", "/x/one"), ("/two", "/x/two")))["task_id"]
    active = globus.wait(task, nice_status="QUOTA_EXCEEDED")
    assert (active["status"], active["is_ok"]) == ("ACTIVE", False)
    assert quota.clear() >= 1
    assert globus.wait(task)["status"] == "SUCCEEDED"
    codes = {event["code"] for event in transfer.task_event_list(task)}
    assert codes >= {"STARTED", "QUOTA_EXCEEDED", "VERIFY_CHECKSUM", "PROGRESS", "SUCCEEDED"}
    assert wire.hits == 1
    assert (target.root / "x/one").read_bytes() == (here.root / "one").read_bytes()
    with globus_ends(globus, "file_not_found", path="/two", after=1, fatal=True):
        task = transfer.submit_transfer(_task(here, target, ("/one", "/y/one"), ("/two", "/y/two")))[
            "task_id"
        ]
        failed = globus.wait(task)
    assert (failed["status"], failed["fatal_error"]["code"]) == ("FAILED", "FILE_NOT_FOUND")
    skipping = transfer.submit_transfer(
        _task(here, target, ("/nothing", "/n"), ("/one", "/z"), skip_source_errors=True)
    )["task_id"]
    assert globus.wait(skipping)["subtasks_skipped_errors"] == 1
    assert [found["error_code"] for found in transfer.task_skipped_errors(skipping)] == ["FILE_NOT_FOUND"]
    pause = globus.fault("paused", collection=target.id, message="by the night shift")
    task = transfer.submit_transfer(_task(here, target, ("/one", "/p")))["task_id"]
    assert globus.wait(task, nice_status="PAUSED")["is_paused"]
    assert transfer.task_pause_info(task)["pause_rules"][0]["message"] == "by the night shift"
    pause.clear()
    assert globus.wait(task)["status"] == "SUCCEEDED"
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    with globus_ends(globus, "offline", collection=target.id):
        task = transfer.submit_transfer(_task(here, target, ("/one", "/q"), deadline=soon))["task_id"]
        with pytest.raises(globus_sdk.TransferAPIError, match="GCDisconnected"):
            transfer.operation_ls(target.id)
        assert globus.wait(task)["fatal_error"]["code"] == "EXPIRED"
        task = transfer.submit_transfer(_task(here, target, ("/one", "/q")))["task_id"]
        assert transfer.cancel_task(task)["code"] == "Canceled"
    assert globus.wait(task)["fatal_error"]["code"] == "CANCELED"


def test_options_of_a_task_mean_what_they_say(
    globus: Globus, transfer: globus_sdk.TransferClient, tmp_path: Path
) -> None:
    here, target = _two(globus, tmp_path)
    os.utime(here.root / "one", (1_700_000_000.9, 1_700_000_000.9))
    os.mkfifo(here.root / "pipe")
    (here.root / "link").symlink_to("one")

    def ends(data: Any) -> dict[str, Any]:
        return globus.wait(transfer.submit_transfer(data)["task_id"])

    data = _task(here, target, ("/", "/to"), sync_level="checksum", preserve_timestamp=True)
    data.add_filter_rule("three", method="exclude", type="file")
    assert ends(data)["files_transferred"] == 3
    assert (target.root / "to/one").stat().st_mtime == 1_700_000_000
    assert not (target.root / "to/pipe").exists()
    (target.root / "to/extra").write_bytes(b"")
    (target.root / "to/two").write_bytes(b"x")
    data = _task(here, target, ("/", "/to"), sync_level="checksum", delete_destination_extra=True)
    assert [ends(data)[name] for name in ("files_transferred", "files_skipped", "files")] == [2, 2, 4]
    assert not (target.root / "to/extra").exists()

    md5 = hashlib.md5((here.root / "two").read_bytes()).hexdigest()  # noqa: S324 - Globus's default
    data = globus_sdk.TransferData(here.id, target.id, skip_source_errors=True, verify_checksum=True)
    data.add_item(
        "/one", "/x1", external_checksum=hashlib.sha256(b"").hexdigest(), checksum_algorithm="SHA256"
    )
    data.add_item("/two", "/x2", external_checksum=md5)
    with globus_ends(globus, "corrupted_later", path="/x2"):
        task = ends(data)
    assert (task["subtasks_skipped_errors"], task["files_transferred"]) == (1, 1)
    assert (target.root / "x2").read_bytes() != (here.root / "two").read_bytes()
    with globus_ends(globus, "permission_denied", collection=target.id, path="/y", times=1):
        task = ends(_task(here, target, ("/one", "/y"), skip_source_errors=True))
    assert (task["faults"], task["files_transferred"]) == (1, 1)  # not an error of the source
    data, submission = _task(here, target, ("/one", "/z")), transfer.get_submission_id()["value"]
    impatient = _impatient(globus)
    data["submission_id"] = submission
    with globus_ends(globus, "lost_answer"), pytest.raises(globus_sdk.NetworkError):
        impatient.submit_transfer(data)
    assert globus.submissions()[-1]["lost"]
    assert transfer.submit_transfer(data)["code"] == "Duplicate"
    globus.wait(globus.tasks()[-1]["task_id"])


def _impatient(globus: Globus) -> globus_sdk.TransferClient:
    client = globus_sdk.ConfidentialAppAuthClient(globus.client_id, globus.client_secret)
    token = client.oauth2_client_credentials_tokens(TransferScopes.all)["access_token"]
    once = globus_sdk.transport.RetryConfig(max_retries=0)
    return globus_sdk.TransferClient(authorizer=globus_sdk.AccessTokenAuthorizer(token), retry_config=once)


class globus_ends:  # noqa: N801 - used like a function in `with`
    """A fault that is active during a `with` block."""

    def __init__(self, globus: Globus, kind: str, **where: Any) -> None:
        self.fault = globus.fault(kind, **where)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.fault.clear()


def test_tokens_and_consents_count(
    globus: Globus, transfer: globus_sdk.TransferClient, tmp_path: Path
) -> None:
    shut = globus.make_collection(tmp_path / "shut", data_access=True, https=True)
    (shut.root / "file").write_bytes(b"0123456789")
    with pytest.raises(globus_sdk.TransferAPIError) as refused:
        transfer.operation_ls(shut.id)
    assert refused.value.info.consent_required
    assert refused.value.info.consent_required.required_scopes == [
        str(TransferScopes.all.with_dependency(GCSCollectionScopes(shut.id).data_access.with_optional(True)))
    ]
    globus.fault("unauthorized", times=1)
    assert (
        transfer.get_endpoint(shut.id)["https_server"] == shut.https_server
    )  # the SDK retries this one and the next:
    globus.fault("too_many_requests", request="/endpoint/", retry_after=0, times=1)
    assert transfer.get_endpoint(shut.id)["display_name"] == "shut"
    with _person(globus) as app:
        person = globus_sdk.TransferClient(app=app)
        person.add_app_data_access_scope(shut.id)
        app.login()
        assert not app.login_required()
        assert [file["name"] for file in person.operation_ls(shut.id)] == ["file"]
        globus.expire(tokens="access")
        assert [file["name"] for file in person.operation_ls(shut.id)] == ["file"]
        globus.expire(tokens="access")
        globus.expire(tokens="refresh")
        with pytest.raises(globus_sdk.AuthAPIError, match="invalid_grant"):
            person.operation_ls(shut.id)
    _reads_by_https(globus, shut)


def _person(globus: Globus) -> globus_sdk.UserApp:
    class Browser(CommandLineLoginFlowManager):
        def print_authorize_url(self, authorize_url: str) -> None:
            self.code = globus.approve(authorize_url)

        def prompt_for_code(self) -> str:
            return self.code

    config = globus_sdk.GlobusAppConfig(
        token_storage=MemoryTokenStorage(), request_refresh_tokens=True, login_flow_manager=Browser
    )
    return globus_sdk.UserApp("test", client_id=globus.native_id, config=config)


def _reads_by_https(globus: Globus, shut: MadeCollection) -> None:
    client = globus_sdk.ConfidentialAppAuthClient(globus.client_id, globus.client_secret)
    found = client.oauth2_client_credentials_tokens(GCSCollectionScopes(shut.id).https)
    token = found.by_resource_server[shut.id]["access_token"]
    assert client.oauth2_token_introspect(token)["exp"] > time.time()
    headers = {"Authorization": f"Bearer {token}", "Range": "bytes=2-4"}
    request = urllib.request.Request(f"{shut.https_server}/file", headers=headers)  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        assert (answer.status, answer.read()) == (206, b"234")
    client.oauth2_revoke_token(token)
    assert not client.oauth2_token_introspect(token)["active"]
