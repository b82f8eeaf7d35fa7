"""Test datasets whose files are at a web server that exchanges a password for a token, such as LORIS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali_plugins.datasets.contents import fetch_contents
from tests.contracts.subjects import stores_there
from tests.services.loris import LOGIN, LorisServer
from tests.support.annex import AnnexRepository, make_repository
from tests.support.loris_site import IMAGE, SCAN, Loris
from tests.support.secret_search import check_secrets_absent

pytestmark = pytest.mark.skipif(not stores_there("url"), reason="sites with a URL are in hibali_plugins/web")


@pytest.fixture
def loris(hibali: Any) -> Iterator[Loris]:
    with closing(LorisServer({IMAGE: SCAN})) as server:
        yield Loris(hibali, server)


@pytest.fixture
def study(loris: Loris, tmp_path: Path) -> AnnexRepository:
    """Return a dataset with three files at the LORIS: a scan, one whose content is another now, and one of unknown size."""
    repository = make_repository(tmp_path / "study", loris.hibali.env, loris.hibali.home.home)
    loris.hibali.env = repository.env
    repository.run("config", "annex.security.allowed-ip-addresses", "127.0.0.1")
    url = f"{loris.server.url}{IMAGE}"
    repository.run("annex", "addurl", "--relaxed", "--file=relaxed.mnc", url)
    for name, content in (("scan.mnc", SCAN), ("changed.mnc", SCAN[::-1])):
        key = f"MD5E-s{len(content)}--{hashlib.md5(content, usedforsecurity=False).hexdigest()}.mnc"
        repository.run("annex", "fromkey", "--force", key, name)
        repository.run("annex", "registerurl", key, url)
    repository.run("commit", "-q", "-m", "scans")
    return repository


def test_a_check_of_a_dataset_tests_the_login(loris: Loris, study: AnnexRepository) -> None:
    good = loris.hibali("datasets", "check", study.folder, "--json", exit=0)
    assert good.last["files_available"] == 3
    assert loris.logins == 1
    loris.set_password("of last year")
    refused = loris.hibali("datasets", "check", study.folder, "--json", exit=4)
    assert [problem["code"] for problem in refused.last["problems"]] == [
        "bad-credentials",
        "files-unavailable",
    ]


def test_a_check_without_a_login_says_how_to_configure_one(loris: Loris, study: AnnexRepository) -> None:
    loris.hibali.home.config.unlink()
    refused = loris.hibali("datasets", "check", study.folder, "--json", exit=4).last["problems"][0]
    assert refused["code"] == "credentials-refused"
    assert refused["hint"].startswith("If you have a login: hibali sites add web --url ")
    providers = study.folder / ".datalad/providers"
    providers.mkdir(parents=True)
    (providers / "loris.cfg").write_text(
        f"[provider:loris]\nurl_re = {loris.server.url}/*\nauthentication_type = loris-token\ncredential = loris\n"
        f"[credential:loris]\nurl = {loris.server.url}{LOGIN}\ntype = loris-token\n"
    )
    refused = loris.hibali("datasets", "check", study.folder, "--json", exit=4).last["problems"][0]
    command, _, login = refused["hint"].partition(": ")[2].partition(" && ")
    assert login == "hibali sites login web"
    loris.hibali(*command.split()[1:], exit=0)
    needed = loris.hibali("datasets", "check", study.folder, "--json", exit=4).last["problems"][0]
    assert (needed["code"], needed["hint"]) == ("login-needed", "To log in: hibali sites login web")


def test_a_transfer_fetches_contents_with_the_login_and_verifies_them(
    loris: Loris, study: AnnexRepository, tmp_path: Path
) -> None:
    answer = loris.hibali("sync", study.folder, tmp_path / "there", "--json", exit=6)
    assert (tmp_path / "there/scan.mnc").read_bytes() == SCAN
    failed = {line["path"]: line["message"] for line in answer.lines if line["kind"] == "failed"}
    assert failed.keys() == {"changed.mnc", "relaxed.mnc"}
    assert "Verification of content failed" in failed["changed.mnc"]
    assert "its key has no size" in failed["relaxed.mnc"]
    assert study.run("annex", "find", "--in=here") == b"scan.mnc\n"
    secrets = [loris.server.login[1], *loris.server.tokens]
    check_secrets_absent(secrets, loris.hibali, answer, but=[loris.password_file])

    logins = load_sites(str(loris.hibali.home.config)).web_logins()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", study.env["PATH"])
        fetch_contents(str(study.folder / "relaxed.mnc").encode(), logins)
    assert (study.folder / "relaxed.mnc").read_bytes() == SCAN
