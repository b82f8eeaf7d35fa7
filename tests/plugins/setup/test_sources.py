"""Test importing sites from other programs' files: robust parsing, and no secrets in the result."""

from __future__ import annotations

import contextlib
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.edit import check_site_table, render_site
from hibali.config.model import SITE_NAME
from hibali.errors import HibaliError, RefusedError, UsageError
from hibali.text import did_you_mean, nearest
from hibali_plugins.setup import sources
from hibali_plugins.setup.sources import Passed, Proposal, name_site
from tests.services.session import REPOSITORY

WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


def test_ssh_names_come_from_host_lines_only() -> None:
    text = (
        'Host one "two" *.example.org !three four?  # five\n'
        "  HostName=six\nhost\tseven\nHOST = eight\nMatch host nine\nInclude a.d/* ~/b\n#Host ten\n"
    )
    found = sources.read_lines(text)
    assert found.names == [("one", 1), ("two", 1), ("seven", 3), ("eight", 4)]
    assert found.includes == [("a.d/*", 6), ("~/b", 6)]


@given(st.text(max_size=300))
def test_any_text_is_read_as_ssh_configuration(text: str) -> None:
    for word, line in sources.read_lines(text).names:
        assert word
        assert not set("*?!") & set(word)
        assert 1 <= line <= len(text.splitlines())


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Include config other\nHost first\n")
    (tmp_path / "other").write_text("Host second\nInclude missing config\n")
    assert {name for name, _ in sources.find_names(tmp_path / "config")} == {"first", "second"}


@given(WORD, st.sets(WORD, max_size=3))
def test_any_text_gives_a_new_valid_site_name(text: str, others: set[str]) -> None:
    taken = {name_site(other, ()) for other in others}
    name = name_site(text, taken)
    assert SITE_NAME.fullmatch(name)
    assert name not in taken


KEYS = (
    "endpoint",
    "region",
    "host",
    "user",
    "port",
    "url",
    "key_file",
    "provider",
    "env_auth",
    "ssh",
    "profile",
)


@given(
    st.dictionaries(
        WORD,
        st.fixed_dictionaries(
            {"type": st.sampled_from(["s3", "sftp", "webdav", "drive", ""])},
            optional=dict.fromkeys(KEYS, WORD),
        ),
        max_size=3,
    )
)
def test_remotes_become_valid_sites_without_secrets(
    remotes: dict[str, dict[str, str]],
) -> None:
    secrets = dict.fromkeys(
        ("pass", "secret_access_key", "bearer_token", "key_pem", "access_key_id"), "S3CR3T"
    )
    found = sources.propose_remotes({name: {**each, **secrets} for name, each in remotes.items()}, "file", ())
    assert len(found) == len(remotes)
    for each in found:
        assert "S3CR3T" not in repr(each)
        if isinstance(each, Proposal):
            check_site_table(each.name, each.table)
            assert tomllib.loads(render_site(each.name, each.table))


@given(st.text(max_size=300))
def test_any_text_is_a_rclone_conf_or_an_error(text: str) -> None:
    with contextlib.suppress(UsageError):  # no other exception is allowed
        sources.propose_remotes(sources.read_remotes(text, "file"), "file", ())


def test_notes_list_missing_settings_of_rclone_remotes() -> None:
    text = (
        "[Big Data]\ntype = s3\nprovider = Ceph\naccess_key_id = AK\nsecret_access_key = SK\nendpoint = s3.example.org\n"
        "[open]\ntype = s3\nprovider = AWS\nregion = eu-central-1\n"
        "[login]\ntype = sftp\nhost = hpc.example.org\nuser = me\nport = 2222\npass = obscured\n"
        "[cloud]\ntype = webdav\nurl = https://cloud.example.org/dav\nuser = me\npass = obscured\n"
        "[plain]\ntype = webdav\nurl = http://cloud.example.org/dav\n[drive]\ntype = drive\n"
    )
    found = sources.propose_remotes(sources.read_remotes(text, "conf"), "conf", ("login",))
    tables = {each.name: each.table for each in found if isinstance(each, Proposal)}
    assert tables["big-data"] == {
        "kind": "s3",
        "s3": {"endpoint": "https://s3.example.org", "profile": "big-data"},
    }
    assert tables["open"] == {
        "kind": "s3",
        "s3": {"endpoint": "aws", "region": "eu-central-1", "anonymous": True},
    }
    assert tables["login-2"] == {
        "kind": "ssh",
        "ssh": {"host": "me@hpc.example.org", "command": ["ssh", "-p", "2222"]},
    }
    assert tables["cloud"] == {"kind": "url", "url": "davs://cloud.example.org/dav"}
    assert {each.name for each in found if isinstance(each, Passed)} == {"plain", "drive"}
    notes = {each.name: " ".join(each.notes) for each in found if isinstance(each, Proposal)}
    assert "aws configure --profile big-data" in notes["big-data"]
    assert "ssh-copy-id" in notes["login-2"]
    assert "--credentials-command" in notes["cloud"]


FIT = """version = 1
[sites.cluster]
kind = "ssh"
default_root = "scratch"
roots = { scratch = "$SCRATCH/x" }
[sites.cluster.ssh]
host = "login.example.org"
[sites.cluster.scheduler]
name = "slurm"
prologue = ["module load Apptainer/1.3"]
directives = ["--constraint=cpu"]
[sites.bucket]
kind = "s3"
[sites.bucket.s3]
endpoint = "https://s3.example.org"
"""


def test_a_profile_leaves_personal_settings_to_the_user() -> None:
    cluster, bucket = sources.read_profile(FIT.encode(), "file")
    mine = sources.with_account(cluster, "me", "brain")
    assert mine.table["ssh"]["host"] == "me@login.example.org"
    assert mine.table["scheduler"]["account"] == "brain"
    assert "account" not in cluster.table["scheduler"]
    assert cluster.notes
    assert sources.with_account(bucket, "me", "brain").table == bucket.table


def test_the_profile_in_the_documentation_is_valid() -> None:
    page = (REPOSITORY / "docs/site-setup.md").read_text()
    [text] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    [site] = sources.read_profile(text.encode(), "docs")
    assert sources.with_account(site, "me", None).table["ssh"]["data_host"] == "me@judac.fz-juelich.de"


UNFIT = {
    "ssh.command": '[sites.x]\nkind = "ssh"\nssh = { host = "h", command = ["sh", "-c", "id"] }',
    "ssh.python": '[sites.x]\nkind = "ssh"\nssh = { host = "h", python = "/tmp/p" }',
    "ssh.host": '[sites.x]\nkind = "ssh"\nssh = { host = "root@h" }',
    "s3.credentials_command": '[sites.x]\nkind = "s3"\ns3 = { endpoint = "aws", credentials_command = ["id"] }',
    "s3.profile": '[sites.x]\nkind = "s3"\ns3 = { endpoint = "aws", profile = "p" }',
    "credentials_command": '[sites.x]\nkind = "url"\nurl = "https://h/"\ncredentials_command = ["id"]',
    "url": '[sites.x]\nkind = "url"\nurl = "https://me@h/"',
    "kind": '[sites.x]\nkind = "local"\nroots = { a = "/etc" }',
    "scheduler.account": '[sites.x]\nkind = "ssh"\nssh = { host = "h" }\nscheduler = { name = "slurm", account = "a" }',
    "scheduler.mpi": '[sites.x]\nkind = "ssh"\nssh = { host = "h" }\nscheduler = { name = "slurm", mpi = "rm" }',
    "scheduler.prologue": (
        '[sites.x]\nkind = "ssh"\nssh = { host = "h" }\nscheduler = { name = "slurm", prologue = ["module load a; id"] }'
    ),
    "scheduler.directives": (
        '[sites.x]\nkind = "ssh"\nssh = { host = "h" }\nscheduler = { name = "slurm", directives = ["--wrap=id"] }'
    ),
    "reached_from": '[sites.x]\nkind = "ssh"\nssh = { host = "h" }\n[sites.x.reached_from.other]\nhost = "h"',
    "tiers.nvme.directive": (
        '[sites.x]\nkind = "ssh"\nssh = { host = "h" }\ntiers = { nvme = { path = "/nvme", directive = "#BB x" } }'
    ),
}


@pytest.mark.parametrize("key", UNFIT)
def test_a_profile_with_personal_settings_or_commands_is_refused(key: str) -> None:
    with pytest.raises(RefusedError) as refused:
        sources.read_profile(f"{FIT}{UNFIT[key].replace('sites.x', 'sites.hostile')}\n".encode(), "file")
    assert refused.value.code == "unfit-profile"
    assert f"hostile.{key}: " in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version = 1\n",
        "version = 2\n[sites.ab]",
        "x = 1",
        "[catalogue]\norigins = []",
        "[sites]\n'../x' = {}",
        "\x00",
    ],
)
def test_invalid_profiles_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(UsageError):
        sources.read_profile(text.encode(), "file")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_profile_or_an_error(raw: bytes) -> None:
    with pytest.raises(HibaliError):
        sources.read_profile(raw, "file")


def test_a_large_profile_is_refused() -> None:
    with pytest.raises(RefusedError):
        sources.read_profile(b"#" * (sources.MOST_BYTES + 1), "file")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("pusj", "push"), ("puhs", "push"), ("verfy", "verify"), ("man", "manifest"), ("zzz", None), ("", None)],
)
def test_the_most_similar_word_is_suggested(word: str, meant: str | None) -> None:
    assert nearest(word, ["push", "pull", "verify", "manifest"]) == meant
    assert did_you_mean(word, ["push", "pull", "verify", "manifest"]) == (
        f"Did you mean {meant}? " if meant else ""
    )
