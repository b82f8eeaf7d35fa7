"""Test `hibali sites add NAME --iri URL`: what a facility says about itself becomes settings, checked as any others."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.schemas import check_line
from tests.services.iri import COMPUTE, FILESYSTEM, Iri, location
from tests.support.terminal import Terminal

COLLECTION = "9d6d994a-6d04-11e5-ba46-22000b92c6ec"
COMMAND = "echo planted-token"


@pytest.fixture
def facility(iri: Iri) -> Iri:
    """A facility with locations and access endpoints, as the models of the reference server allow (v2 1e5df71)."""
    home = str(iri.home)
    iri.locations[FILESYSTEM] = [
        location("home", home),
        location("temporary", f"{home}/tmp", days=7),
        location("scratch", f"{home}/scratch", days=56),
        location("shared", f"{home}/shared", write=False),
        location("project", f"{home}/a"),
        location("project", f"{home}/b"),
        location("archive", "/archive/me"),
    ]
    iri.locations[COMPUTE] = iri.locations[FILESYSTEM][:-1]
    iri.endpoints[FILESYSTEM] = [
        endpoint("globus", endpoint_id=COLLECTION, uri=f"globus://{COLLECTION}/", root_path="/global"),
        endpoint("xrootd", endpoint="root://data.example/"),
        endpoint("s3", bucket="brains", region="us-east-1", endpoint_url="https://s3.example.org"),
        endpoint("s3", bucket="other"),
    ]
    return iri


def endpoint(protocol: str, **more: Any) -> dict[str, Any]:
    """Return an access endpoint as the storage router writes it."""
    return {
        "id": "1",
        "resource_id": FILESYSTEM,
        "protocol": protocol,
        "auth_type": "x",
        "capabilities": ["read"],
        **more,
    }


def add(hibali: Any, facility: Iri, *words: object, command: str = COMMAND, **more: Any) -> Any:
    """Add the site `there`, and return what was printed."""
    login = ("--credentials-command", command) if command else ()
    return hibali("sites", "add", "there", "--iri", facility.url, *login, *words, **{"exit": 0, **more})


def sites(hibali: Any) -> dict[str, Any]:
    """Return the sites of config.toml."""
    return tomllib.loads(hibali.home.config.read_text())["sites"]  # type: ignore[no-any-return]


def test_a_facility_fills_the_settings_of_its_site(hibali: Any, facility: Iri) -> None:
    done = add(hibali, facility)
    home = str(facility.home)
    found = sites(hibali)
    assert found["there"] == {
        "kind": "iri",
        "iri": {
            "url": facility.url,
            "token_command": COMMAND.split(),
            "system": "system",
            "filesystem": "files",
        },
        "scheduler": {"name": "iri"},
        "roots": {
            "home": home,
            "temporary": f"{home}/tmp",
            "scratch": f"{home}/scratch",
            "shared": f"{home}/shared",
            "project": f"{home}/a",
            "project-2": f"{home}/b",
            "archive": {"path": "/archive/me", "nodes": False},
        },
        "read_only": ["shared"],
        "purge": {"root": "scratch", "days": 56},
    }
    globus = {
        "kind": "globus",
        "globus": {"collection": COLLECTION},
        "roots": {"data": "/global"},
        "default_root": "data",
    }
    s3 = {"endpoint": "https://s3.example.org", "bucket": "brains", "region": "us-east-1"}
    assert found["there-globus"] == globus
    assert found["there-s3"] == {"kind": "s3", "s3": s3}
    assert found["there-s3-2"] == {"kind": "s3", "s3": {"endpoint": "aws", "bucket": "other"}}
    said = done.err.decode()
    assert f"roots.scratch = {home}/scratch (from storage/locations)" in said
    assert "temporary is purged, too, after 7 days" in said
    assert "xrootd is offered, too" in said
    assert "hibali sites login there-globus" in said
    (facility.home / "scratch").mkdir()
    (facility.home / "scratch" / "scan").write_bytes(b"1")
    assert b"scan" in hibali("ls", "there:@scratch", exit=0).out
    hibali("rm", "there:@shared/x", "--yes", exit=8)


def test_what_the_user_gave_or_changed_stays(hibali: Any, facility: Iri) -> None:
    add(hibali, facility, "--no-check", "--root", "scratch=/mine")
    assert sites(hibali)["there"]["roots"] == {"scratch": "/mine"}
    add(hibali, facility, "--replace", "--root", "scratch=/mine")
    assert sites(hibali)["there"]["roots"]["scratch"] == "/mine"
    assert sites(hibali)["there"]["purge"] == {"root": "temporary", "days": 7}
    hibali("config", "set", "sites.there-s3.s3.profile", "lab", exit=0)
    lines = add(hibali, facility, "--root", "scratch=/mine", "--replace", "--json").lines
    assert _changes(lines) == [("there", "same")]
    assert sites(hibali)["there-s3"]["s3"]["profile"] == "lab"


def _changes(lines: Any) -> list[tuple[str, str]]:
    return [
        (line["name"], line["change"]) for line in map(check_line, lines) if line["kind"] == "site-change"
    ]


@pytest.mark.parametrize("option", [(), ("--dry-run",), ("--no-check",)], ids=str)
def test_the_same_command_again_changes_nothing_and_asks_nobody(
    hibali: Any, facility: Iri, option: tuple[str, ...]
) -> None:
    """The user followed the note about `data`, and edited what was filled in and what came along."""
    add(hibali, facility)
    for setting in ("roots.scratch=/mine", "iri.data=there-globus", "limits.poll=1s"):
        hibali("config", "set", *f"sites.there.{setting}".split("="), exit=0)
    before, asked = hibali.home.config.read_bytes(), sum(facility.requests.values())
    done = add(hibali, facility, *option, "--json")
    assert _changes(done.lines) == [("there", "same")]
    assert (hibali.home.config.read_bytes(), sum(facility.requests.values())) == (before, asked)


def test_a_site_that_moves_the_files_can_be_given(hibali: Any, facility: Iri) -> None:
    hibali("sites", "add", "disk", "--local", facility.home, "--no-check", exit=0)
    for _ in range(2):
        add(hibali, facility, "--set", "iri.data=disk")
    assert sites(hibali)["there"]["iri"]["data"] == "disk"
    refused = add(hibali, facility, "--set", "iri.data=none", "--replace", "--json", exit=2).last
    assert (refused["code"], "'none'" in refused["message"]) == ("invalid-site", True)


def test_a_command_that_gives_something_else_names_what_differs(hibali: Any, facility: Iri) -> None:
    add(hibali, facility, "--no-check")
    asked = sum(facility.requests.values())
    words = ("--root", "scratch=/mine", "--set", "iri.filesystem=other", "--json")
    refused = add(hibali, facility, *words, command="echo other", exit=8).last
    assert refused["code"] == "site-differs"
    assert refused["message"].endswith("; different: iri.token_command, iri.filesystem, roots")
    wrong = hibali("sites", "add", "there", "--local", facility.home, "--json", exit=8).last
    assert wrong["message"].endswith("; different: kind, iri, default_root, roots")
    assert sum(facility.requests.values()) == asked


def test_the_sites_of_a_facility_are_written_at_once_or_not_at_all(hibali: Any, facility: Iri) -> None:
    """One of the sites beside it cannot be written: the file has a layout that hibali cannot change."""
    text = 'version = 1\nsites = {here = {kind = "local"}}\n'
    hibali.home.config.write_text(text)
    hibali.home.config.chmod(0o600)
    assert add(hibali, facility, "--json", exit=2).last["code"] == "not-editable"
    assert hibali.home.config.read_text() == text


def test_a_dry_run_asks_the_facility_and_writes_nothing(hibali: Any, facility: Iri) -> None:
    lines = [check_line(line) for line in add(hibali, facility, "--dry-run", "--json").lines]
    assert [line["kind"] for line in lines] == ["site-description", *["site-change"] * 4]
    assert {"key": "purge", "value": "root scratch, days 56", "source": "storage/locations"} in lines[0][
        "filled"
    ]
    printed = tomllib.loads(add(hibali, facility, "--dry-run").out.decode())
    assert set(printed["sites"]) == {"there", "there-globus", "there-s3", "there-s3-2"}
    assert not hibali.home.config.exists()


def test_without_a_token_the_public_part_is_shown_and_what_to_do(hibali: Any, facility: Iri) -> None:
    done = add(hibali, facility, exit=2, command="")
    assert b"iri.system = system (from status/resources)" in done.err
    assert b"only told with a token: add --credentials-command" in done.err
    assert not hibali.home.config.exists()


def test_a_rejected_token_keeps_the_site_as_it_was_given(hibali: Any, facility: Iri) -> None:
    done = add(hibali, facility, exit=4, command="echo wrong-planted-token")
    assert b"nothing is filled in" in done.err
    assert b"wrong-planted" not in done.err
    assert "roots" not in sites(hibali)["there"]


def test_a_resource_whose_name_no_setting_may_have_is_written_by_its_id(hibali: Any, facility: Iri) -> None:
    facility.resources = {"$(id) x": COMPUTE, "files": FILESYSTEM}
    done = add(hibali, facility, "--dry-run")
    assert tomllib.loads(done.out.decode())["sites"]["there"]["iri"]["system"] == COMPUTE
    assert b"Left out: iri.system of status/resources" in done.err


def test_a_wrong_url_keeps_the_site_as_it_was_given(hibali: Any, facility: Iri) -> None:
    done = hibali(
        "sites", "add", "there", "--iri", f"{facility.origin}/x/v2", "--credentials-command", COMMAND
    )
    assert done.exit in {3, 4, 5}
    assert b"nothing is filled in" in done.err
    assert set(sites(hibali)["there"]) == {"kind", "iri"}
    facility.refused.clear()


@pytest.mark.heavy
def test_a_facility_without_the_storage_router_is_used_as_before(hibali: Any, facility: Iri) -> None:
    """The reference server rejects every token where the facility has no adapter for storage (v2 1e5df71, run)."""
    facility.has_storage = False
    done = add(hibali, facility, "--set", f"iri.home={facility.home}")
    assert b"storage/locations: the facility did not answer" in done.err
    hibali("push", Path(__file__), "there:copy", exit=0)


def test_version_1_does_not_describe_storage(hibali: Any, slurm: Any, tmp_path: Path) -> None:
    first = Iri(tmp_path / "first", slurm, 1)
    done = add(hibali, first, "--set", f"iri.home={first.home}")
    assert b"Version 1 of the API does not describe storage: add --root" in done.err
    assert sites(hibali)["there"]["iri"]["filesystem"] == "files"
    first.close()


def test_several_systems_are_listed_and_asked_for_on_a_terminal(hibali: Any, facility: Iri) -> None:
    facility.resources = {"big": COMPUTE, "compute": "4", **dict(list(facility.resources.items())[1:])}
    error = check_line(add(hibali, facility, "--json", exit=3).last)
    assert (error["code"], "there are: big, compute" in error["message"]) == ("no-such-system", True)
    assert error["hint"] == "Run the same command with --system NAME"
    words = ["sites", "add", "there", "--iri", facility.url, "--credentials-command", COMMAND, "--dry-run"]
    terminal = Terminal([sys.executable, "-m", "hibali_cli", *words], hibali.env, columns=200)
    terminal.until(lambda screen: "Which resource is the system of there (big, compute)?" in screen)
    terminal.press(b"big\n")
    assert terminal.end() == 0
    assert b'system = "big"' in terminal.written
    error = check_line(add(hibali, facility, "--json", "--system", "none", exit=3).last)
    assert error["message"] == "the facility has no resource none; there are: big, compute, files, website"
    assert not hibali.home.config.exists()


HOSTILE: list[tuple[str, Any]] = [
    ("scratch", "relative"),
    ("scratch", "/a\nb"),
    ("scratch", "/a\x1b[2J"),
    ("scratch", ["/a"]),
    ("scratch", "~/x"),
    ("a b", "/x"),
    ("", "/x"),
    ("scratch", None),
    ("x" * 100_000 + " ", "/x"),
]


@pytest.mark.parametrize(("name", "path"), HOSTILE, ids=range(len(HOSTILE)))
def test_locations_that_no_setting_may_have_are_left_out(
    hibali: Any, facility: Iri, name: str, path: Any
) -> None:
    good = location("home", str(facility.home))
    facility.locations[FILESYSTEM] = [{**good, "logical_name": name, "path": path}, good]
    done = add(hibali, facility, "--dry-run")
    assert tomllib.loads(done.out.decode())["sites"]["there"]["roots"] == {"home": str(facility.home)}
    assert b"Left out: " in done.err
    assert len(done.err) < 10_000


@pytest.mark.parametrize(
    "odd",
    [
        {"purge_policy_days": -1},
        {"purge_policy_days": "soon"},
        {"purge_policy_days": True},
        {"purge_policy_days": 10**30},
        {"access": "none"},
        {"access": None},
    ],
    ids=str,
)
def test_odd_properties_of_a_location_do_not_prevent_its_root(
    hibali: Any, facility: Iri, odd: dict[str, Any]
) -> None:
    facility.locations[FILESYSTEM] = [{**location("scratch", str(facility.home)), **odd}]
    found = tomllib.loads(add(hibali, facility, "--dry-run").out.decode())["sites"]["there"]
    assert found["roots"] == {"scratch": str(facility.home)}
    assert "purge" not in found


@pytest.mark.parametrize(
    "odd",
    [
        endpoint("globus", endpoint_id="no uuid"),
        endpoint("globus"),
        endpoint("globus", endpoint_id=COLLECTION, root_path=["/x"]),
        endpoint("globus", endpoint_id=COLLECTION, root_path="/x\x1b[2J"),
        endpoint("globus", endpoint_id=COLLECTION, root_path="/x\x9b2J"),
        endpoint("globus", endpoint_id=COLLECTION, root_path="/x\u202e"),
        endpoint("s3", bucket="brains", endpoint_url="http://s3.example.org"),
        endpoint("s3", bucket="../x", endpoint_url="https://s3.example.org"),
        endpoint("s3", bucket="brains", endpoint_url="https://me:secret@s3.example.org"),
        {"protocol": {"odd": 1}},
        [],
    ],
    ids=range(11),
)
def test_endpoints_that_no_setting_may_have_are_left_out(hibali: Any, facility: Iri, odd: Any) -> None:
    facility.endpoints[FILESYSTEM] = [odd]
    done = add(hibali, facility, "--dry-run")
    assert list(tomllib.loads(done.out.decode())["sites"]) == ["there"]
    assert done.out.decode().replace("\n", "").isprintable()


@pytest.mark.parametrize("answer", [{}, "text", 3])
def test_an_answer_that_is_no_list_is_reported(hibali: Any, facility: Iri, answer: Any) -> None:
    facility.locations[FILESYSTEM] = answer
    done = add(hibali, facility, "--dry-run")
    assert b"storage/locations: the facility did not answer" in done.err


def test_only_the_first_hundred_locations_are_read(hibali: Any, facility: Iri) -> None:
    facility.locations[FILESYSTEM] = [location("project", f"/p/{number}") for number in range(300)]
    done = add(hibali, facility, "--dry-run")
    assert len(tomllib.loads(done.out.decode())["sites"]["there"]["roots"]) == 100
    assert b"only the first 100 of 300 are read" in done.err
