"""Test the profiles of computing centres: each of them, what they ask of the user, and one with a real sshd and Slurm."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import NotFoundError, UsageError
from hibali_plugins.centres import profiles
from hibali_plugins.setup import sources
from tests.end_to_end.run_tools import Bench
from tests.end_to_end.test_completion import offered
from tests.services.processes import end_all
from tests.services.session import REPOSITORY
from tests.services.sshd import start_sshd
from tests.support.terminal import Terminal

CENTRES = profiles.names()
GIVEN = {"user": "me", "account": "brain", "email": "me@example.org", "site": "rennes"}
# What a published profile must not set, and one of hibali's own may.
OF_HIBALI = {"ssh.command", "ssh.certificate", "scheduler.directives", "scheduler.prologue"}


def asked(name: str) -> dict[str, str]:
    path = REPOSITORY / "hibali_plugins/centres/profiles" / f"{name}.toml"
    found: dict[str, str] = tomllib.loads(path.read_text())["ask"]
    return found


def options(name: str, **values: str) -> list[str]:
    words = []
    for each in asked(name):
        value = values.get(each, GIVEN[each])
        words += [f"--{each}", value] if each in {"user", "account"} else ["--value", f"{each}={value}"]
    return words


def sites_in(hibali: Any) -> dict[str, Any]:
    path: Path = hibali.home.config
    return tomllib.loads(path.read_text())["sites"] if path.exists() else {}


@pytest.mark.parametrize("name", CENTRES)
def test_the_configuration_accepts_every_site(hibali: Any, name: str) -> None:
    words = ("sites", "import", f"centre:{name}", *options(name))
    shown = hibali(*words, exit=0)
    assert not sites_in(hibali)  # without a terminal only --yes adds a site
    hibali(*words, "--yes", "--accept-prologue", exit=0)
    found = sites_in(hibali)
    assert found
    assert hibali("sites", "list", "--json", exit=0).lines
    for site, table in found.items():
        assert f"[sites.{site}]".encode() in shown.out
        assert table["ssh"]["host"].startswith("me@")
        if "account" in asked(name):
            assert table.get("scheduler", {"account": "brain"})["account"] == "brain"
    assert "{" not in str(list(_strings(found)))  # every place is filled
    assert b"added" not in hibali(*words, "--yes", exit=0).err  # the same again changes nothing


@pytest.mark.parametrize("name", CENTRES)
def test_a_profile_of_hibali_sets_no_more_than_it_may(name: str) -> None:
    given = {each: GIVEN[each] for each in asked(name)}
    document, values = profiles.read(name, given, None)
    assert values == given
    for each in sources.read_sites(document, name, published=False):
        assert {key for key, _ in sources.find_unfit(each.table)} <= OF_HIBALI
        assert each.table["ssh"].get("command", ["ssh"])[0] == "ssh"


def _strings(value: Any) -> Any:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
    elif isinstance(value, str):
        yield value


def test_a_script_is_told_which_option_is_missing(hibali: Any) -> None:
    refused = hibali("sites", "import", "centre:jsc", "--user", "me", "--yes", "--json", exit=2).last
    assert (refused["code"], refused["about"]) == ("profile-value", "centre:jsc, account")
    assert "--account" in refused["hint"]
    refused = hibali(
        "init", "--yes", "--no-push", "--from", "centre:grid5000", "--user", "me", "--json", exit=2
    ).last
    assert "--value site=" in refused["hint"]
    assert not sites_in(hibali)


@pytest.mark.parametrize(
    "value", ["", "../x", "a/b", "a b", "-oProxyCommand=id", "$(id)", "a\nb", "a,b", "{user}", "a" * 101, "é"]
)
def test_a_value_that_is_more_than_a_word_is_refused(value: str) -> None:
    with pytest.raises(UsageError) as refused:
        profiles.read("lrz", {"user": "me", "account": value}, None)
    assert refused.value.code == "profile-value"


def test_a_value_that_the_profile_does_not_ask_for_is_refused() -> None:
    with pytest.raises(UsageError, match="user, site"):
        profiles.read("grid5000", {"user": "me", "site": "rennes", "account": "brain"}, None)


@pytest.mark.parametrize("name", ["jcs", ""])
def test_an_unknown_centre_is_answered_with_the_known_ones(hibali: Any, name: str) -> None:
    refused = hibali("sites", "import", f"centre:{name}", "--json", exit=3).last
    assert refused["code"] == "unknown-centre"
    assert f"Known centres: {', '.join(CENTRES)}." in refused["hint"]
    with pytest.raises(NotFoundError):
        profiles.read("../profiles/jsc", {}, None)


def test_an_existing_site_is_kept_without_replace(hibali: Any) -> None:
    hibali("sites", "import", "centre:lumi", *options("lumi"), "--yes", exit=0)
    before = hibali.home.config.read_bytes()
    other = ("sites", "import", "centre:lumi", *options("lumi", account="project_2"), "--yes")
    assert hibali(*other, "--json", exit=8).last["code"] == "site-differs"
    assert hibali.home.config.read_bytes() == before
    hibali(*other, "--replace", exit=0)
    assert sites_in(hibali)["lumi"]["scheduler"]["account"] == "project_2"


def test_a_person_is_asked_for_what_no_option_gives(hibali: Any) -> None:
    command = hibali.command("sites", "import", "centre:csc", "--user", "me", "--only", "roihu")
    terminal = Terminal(command, hibali.env, cwd=hibali.home.folder, columns=120, rows=50)
    terminal.until(lambda screen: screen.endswith("[account]:"))
    terminal.press(b"project_2\r")
    terminal.until(lambda screen: screen.endswith("Add roihu? [y/N]"))
    terminal.press(b"y\r")
    assert terminal.end() == 0
    assert sites_in(hibali)["roihu"]["roots"]["scratch"] == "/scratch/project_2"


def test_the_names_of_centres_are_completed(hibali: Any) -> None:
    assert offered(hibali, "hibali sites import centre:") == set(CENTRES)
    assert offered(hibali, "hibali sites import --from centre:l") == {"lrz", "lumi"}


def ssh_config_for(hibali: Any, server: Any, hosts: str) -> Path:
    """Write a configuration of ssh in which these names lead to the sshd of the tests."""
    path: Path = hibali.home.folder / "ssh_config"
    path.write_text(server.config.read_text().replace(f"Host {server.host}\n", f"Host {hosts}\n"))
    return path


def test_push_through_the_access_machine_of_a_profile(hibali: Any, tmp_path: Path) -> None:
    """An sshd of its own, because others log in to that of all tests meanwhile."""
    session = tmp_path / "counted"
    session.mkdir()
    try:
        server = start_sshd(session, session / "ssh")
        config = ssh_config_for(hibali, server, "access.grid5000.fr rennes")
        words = [*options("grid5000", user=server.user), "--ssh-config", str(config), "--yes"]
        hibali("sites", "import", "centre:grid5000", *words, exit=0)
        (hibali.home.folder / "a.txt").write_text("hello\n")
        hibali("push", "a.txt", "grid5000:a.txt", exit=0)
        assert (server.home / "a.txt").read_text() == "hello\n"
        # at the access machine, and at the frontend through it
        assert server.log.read_bytes().count(b"Accepted publickey") == 2
    finally:
        end_all(session)


def test_push_and_run_with_a_profile(hibali: Any, slurm: Any) -> None:
    """The names of the centre lead to the sshd of the tests; Apptainer and its module are not installed here."""
    bench = Bench(hibali)
    config = ssh_config_for(hibali, slurm, "nibi.alliancecan.ca")
    words = options("alliance", user=slurm.user, account="def-brain")
    words += ["--only", "nibi", "--ssh-config", str(config)]
    hibali("sites", "import", "centre:alliance", *words, "--yes", "--accept-prologue", exit=0)
    for key, value in (
        ("container.name", "bare"),
        ("scheduler.prologue", "[]"),
        ("scheduler.directives", '["--mem=50"]'),
        ("limits.poll", "1s"),
    ):
        hibali("config", "set", f"sites.nibi.{key}", value, exit=0)
    scratch = hibali.home.folder / "scratch"
    scratch.mkdir()
    (slurm.home / "scratch").symlink_to(scratch)
    try:
        (hibali.home.folder / "data").mkdir()
        (hibali.home.folder / "data/a.txt").write_text("hello\n")
        hibali("push", "data", "nibi:data", exit=0)
        assert (scratch / "data/a.txt").read_text() == "hello\n"
        bench.site = "nibi"
        ended = bench.run(bench.answers(**{"in": "nibi:data/a.txt"}), "--wait", exit=0)
    finally:
        (slurm.home / "scratch").unlink()
    [run] = [each["id"] for each in ended.lines if each["kind"] == "run"]
    script = (scratch / "hibali/runs" / run / "job.sh").read_text()
    assert "#SBATCH --account=def-brain" in script
    assert "#SBATCH --time=0-01:00:00" in script
