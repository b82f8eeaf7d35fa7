"""Compare the double's answers with the response fixtures of `globus_sdk.testing`: same members, same types."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import globus_sdk
import pytest
from globus_sdk.scopes import AuthScopes, TransferScopes
from globus_sdk.testing import get_response_set

from tests.services.globus import Globus

README = Path(__file__).parent / "README.md"
ALL = str(TransferScopes.all)


class DoubleAnswers:
    """Send requests to the double, with a collection and a completed task."""

    def __init__(self, globus: Globus, folder: Path) -> None:
        self.globus = globus
        self.login = globus_sdk.ConfidentialAppAuthClient(globus.client_id, globus.client_secret)
        self.tokens = self.login.oauth2_client_credentials_tokens([ALL])
        self.token = self.tokens["access_token"]
        self.transfer = globus_sdk.TransferClient(
            authorizer=globus_sdk.AccessTokenAuthorizer(self.token), retry_config=_once()
        )
        self.here = globus.make_collection(folder / "here")
        self.target = globus.make_collection(folder / "target")
        (self.here.root / "file").write_bytes(b"1234")
        self.submitted = self.transfer.submit_transfer(self._data("/file"))
        globus.wait(self.submitted["task_id"])

    def _data(self, *paths: str) -> Any:
        data = globus_sdk.TransferData(self.here.id, self.target.id, verify_checksum=True)
        for path in paths:
            data.add_item(path, path)
        return data

    def no_items(self) -> Any:
        return self.refused(lambda: self.transfer.submit_transfer(self._data()))

    def delete(self) -> Any:
        data = globus_sdk.DeleteData(self.target.id)
        data.add_item("/file")
        return self.transfer.submit_delete(data)

    def cancel(self) -> Any:
        self.globus.fault("held")
        return self.transfer.cancel_task(self.transfer.submit_transfer(self._data("/file"))["task_id"])

    def rename(self) -> Any:
        self.transfer.operation_mkdir(self.here.id, "/old")
        return self.transfer.operation_rename(self.here.id, "/old", "/new")

    def denied(self) -> Any:
        self.globus.fault("permission_denied", times=1)
        return self.refused(lambda: self.transfer.operation_stat(self.here.id, "/file"))

    def person_grant(self) -> Any:
        self.login.oauth2_start_flow("https://example.org/back", [ALL])
        return self.login.oauth2_exchange_code_for_tokens(
            self.globus.approve(self.login.oauth2_get_authorize_url())
        )

    def consents(self) -> Any:
        scopes = [
            AuthScopes.openid,
            f"{ALL}[*https://auth.globus.org/scopes/{self.here.id}/data_access]",
        ]
        found = self.login.oauth2_client_credentials_tokens(scopes).by_resource_server["auth.globus.org"]
        client = globus_sdk.AuthClient(authorizer=globus_sdk.AccessTokenAuthorizer(found["access_token"]))
        return client.get_consents(self.globus.client_id)

    def wrong_code(self) -> Any:
        self.login.oauth2_start_flow("https://example.org/back", [ALL])
        return self.refused(lambda: self.login.oauth2_exchange_code_for_tokens("no such code"))

    def openid(self) -> Any:
        return self.login.oauth2_client_credentials_tokens([AuthScopes.openid])

    def unauthorized(self) -> Any:
        client = globus_sdk.AuthClient(
            authorizer=globus_sdk.AccessTokenAuthorizer("no token"), retry_config=_once()
        )
        return self.refused(client.userinfo)

    def successes(self) -> Any:
        return self.transfer.get(f"/v0.10/task/{self.submitted['task_id']}/successful_transfers")

    @staticmethod
    def refused(call: Callable[[], object]) -> globus_sdk.GlobusAPIError:
        with pytest.raises(globus_sdk.GlobusAPIError) as problem:
            call()
        return problem.value


def _once() -> Any:
    return globus_sdk.transport.RetryConfig(max_retries=0)


COMPARED: dict[str, Callable[[DoubleAnswers], Any]] = {
    "auth.get_consents default": DoubleAnswers.consents,
    "auth.oauth2_client_credentials_tokens default": lambda answers: answers.tokens,
    "auth.oauth2_client_credentials_tokens openid": DoubleAnswers.openid,
    "auth.oauth2_exchange_code_for_tokens default": DoubleAnswers.person_grant,
    "auth.oauth2_exchange_code_for_tokens invalid_grant": DoubleAnswers.wrong_code,
    "auth.oauth2_revoke_token default": lambda answers: answers.login.oauth2_revoke_token("any"),
    "auth.oauth2_token_introspect default": lambda answers: answers.login.oauth2_token_introspect(
        answers.token
    ),
    "auth.userinfo unauthorized": DoubleAnswers.unauthorized,
    "transfer.cancel_task default": DoubleAnswers.cancel,
    "transfer.endpoint_manager_task_successful_transfers default": DoubleAnswers.successes,
    "transfer.get_endpoint default": lambda answers: answers.transfer.get_endpoint(answers.here.id),
    "transfer.get_submission_id default": lambda answers: answers.transfer.get_submission_id(),
    "transfer.operation_mkdir default": lambda answers: answers.transfer.operation_mkdir(
        answers.here.id, "/made"
    ),
    "transfer.operation_rename default": DoubleAnswers.rename,
    "transfer.operation_stat default": lambda answers: answers.transfer.operation_stat(
        answers.here.id, "/file"
    ),
    "transfer.operation_stat not_found": lambda answers: answers.refused(
        lambda: answers.transfer.operation_stat(answers.here.id, "/nothing")
    ),
    "transfer.operation_stat permission_denied": DoubleAnswers.denied,
    "transfer.submit_delete default": DoubleAnswers.delete,
    "transfer.submit_transfer default": lambda answers: answers.submitted,
    "transfer.submit_transfer failure": DoubleAnswers.no_items,
    "transfer.task_list default": lambda answers: answers.transfer.task_list(
        limit=1000, filter="status:SUCCEEDED/type:TRANSFER"
    ),
}
# members of fixtures whose type differs here
LOOSE = {
    "DATA[].filter_rules",  # null without rules
    "DATA[].sync_level",
    "description",  # descriptions that this owner did not set
    "organization",
    "next_marker",  # null on the last page
}


def test_answers_have_the_shapes_of_the_sdks_own_fixtures(
    globus: Globus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in globus.env.items():
        monkeypatch.setenv(name, value)
    answers = DoubleAnswers(globus, tmp_path)
    for name, call in COMPARED.items():
        set_id, case = name.split()
        fixture = get_response_set(set_id).lookup(case)
        found = call(answers)
        is_error = isinstance(found, globus_sdk.GlobusAPIError)
        status = found.http_status
        assert (status == fixture.status) or (status, fixture.status) == (202, 200), name
        document = found.raw_json if is_error else found.data
        assert _differences(fixture.json, document) == [], name
        if is_error and isinstance(fixture.json, dict) and "code" in fixture.json:
            assert fixture.json["code"] == document["code"], name


def _differences(wanted: Any, found: Any, at: str = "") -> list[str]:
    """Return the fixture's members that are missing in the answer or have another type."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for name, value in wanted.items()
            for line in (
                _differences(value, found[name], f"{at}.{name}".lstrip("."))
                if name in found
                else [f"{at}.{name} is missing"]
            )
        ]
    if isinstance(wanted, list) and isinstance(found, list):
        return [line for one in found[:3] for line in _differences(wanted[0], one, f"{at}[]") if wanted]
    if wanted is None or at in LOOSE or type(wanted) is type(found):
        return []
    return [f"{at} is {type(found).__name__}, not {type(wanted).__name__}"]


def test_the_readme_lists_what_is_compared() -> None:
    listed = re.findall(r"^    (\w+\.\w+ \w+)$", README.read_text(), re.MULTILINE)
    assert listed == list(COMPARED)
