"""Test the commands that exchange pipelines: exit codes, results on stdout, JSON against its schemas."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.end_to_end.test_wrong_direction import refused
from tests.properties.descriptors import make_document, make_input
from tests.support.transfers import Transfers
from tests.unit.registry.test_pipelines_commands import Hibali, records, write


def test_two_accounts_exchange_over_a_folder_and_a_repository(catalogued: Hibali, tmp_path: Path) -> None:
    tool = write(tmp_path / "one.json", make_document("tool [A]", make_input("a")))
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "lab.git"], check=True)
    (tmp_path / "shared").mkdir()
    config = ["--config", "config.toml"]
    for name, url in (("lab", tmp_path / "lab.git"), ("shared", tmp_path / "shared")):
        assert catalogued("pipelines", "remotes", "add", name, str(url), *config).returncode == 0
    assert catalogued("pipelines", "remotes", "add", "lab", "elsewhere", *config).returncode == 8
    listed = records(catalogued("pipelines", "remotes", "list", "--json", *config))
    assert [each.get("name") for each in listed] == ["lab", "shared", None]
    catalogued("pipelines", "add", tool)
    for remote in ("lab", "shared"):
        reported = records(catalogued("pipelines", "publish", "tool", "--to", remote, "--json", *config))
        assert [(each["kind"], each.get("fate")) for each in reported] == [
            ("exchanged", "published"),
            ("end", None),
        ]
        catalogued("pipelines", "remove", "tool@1.0")
        fetched = catalogued("pipelines", "fetch", "--from", remote, *config)
        assert (fetched.returncode, fetched.stdout) == (0, "tool@1.0: fetched\n")
    assert catalogued("pipelines", "fetch", "other", "--from", "lab", *config).returncode == 3
    assert catalogued("pipelines", "fetch", "--from", "nowhere", *config).returncode == 2
    assert catalogued("pipelines", "remotes", "remove", "lab", *config).returncode == 0
    assert "lab" not in (tmp_path / "config.toml").read_text()


def test_signing_and_requiring_signatures(catalogued: Hibali, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    (tmp_path / "signers").write_text(f"ada {(tmp_path / 'key.pub').read_text()}")
    (tmp_path / "config.toml").write_text(
        f'version = 1\n[remotes.shared]\nurl = "{tmp_path}/shared"\n[catalogue]\nrequire_signatures = true\n'
        f'allowed_signers = "{tmp_path}/signers"\n'
    )
    config = ["--config", "config.toml"]
    catalogued("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", make_input("a"))))
    catalogued("pipelines", "publish", "--to", "shared", *config)
    catalogued("pipelines", "remove", "tool@1.0")
    assert catalogued("pipelines", "fetch", "--from", "shared", *config).returncode == 8
    assert catalogued("pipelines", "list").stdout == ""
    catalogued("pipelines", "add", "one.json")
    signed = catalogued("pipelines", "sign", "tool@1.0", "--key", "key", *config)
    assert (signed.returncode, signed.stdout) == (0, "tool@1.0: signed\n")
    catalogued("pipelines", "publish", "--to", "shared", *config)
    catalogued("pipelines", "remove", "tool@1.0")
    assert catalogued("pipelines", "fetch", "--from", "shared", *config).returncode == 0


def test_the_name_of_a_site_without_a_colon_is_never_a_remote(world: Transfers) -> None:
    words = ("pipelines", "remotes", "add", "lab", "there")
    assert "there:" in refused(world, "site-without-colon", *words)["message"]


def test_a_remote_at_the_default_site_is_stored_with_its_name(world: Transfers) -> None:
    add = ("pipelines", "remotes", "add", "lab", ":registry")
    assert refused(world, "no-default-site", *add)
    world.hibali("config", "set", "default-site", "there", exit=0)
    world.hibali(*add, exit=0)
    assert world.hibali("config", "get", "remotes.lab.url", exit=0).out == b"there:registry\n"
