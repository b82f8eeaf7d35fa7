"""Test `config`: settings are read and changed one by one, and an invalid edit is never lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.schemas import check_lines

TEXT = 'version = 1\n\n[sites.here]  # mine\nkind = "local"\nwork = "/work"\n'


def write_config(hibali: Any) -> Path:
    path: Path = hibali.home.config
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def editor(hibali: Any, folder: Path, script: str) -> None:
    program = folder / "editor with blanks"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    hibali.env.update({"VISUAL": f"'{program}' -x", "EDITOR": "false"})


def test_settings_are_printed_changed_and_removed(hibali: Any) -> None:
    path = write_config(hibali)
    assert hibali("config", "path", exit=0).out.decode().strip() == str(path)
    assert hibali("config", "get", "sites.here.work", exit=0).out == b"/work\n"
    assert hibali("config", "get", "sites.here", "--json", exit=0).last["value"]["kind"] == "local"
    assert hibali("config", "set", "sites.here.work", "/new", "--json", exit=0).last["change"] == "set"
    assert path.read_text() == TEXT.replace("/work", "/new")
    refused = hibali("config", "set", "sites.here.work", "relative", "--json", exit=2)
    assert refused.last["code"] == "invalid-setting"
    hibali("config", "unset", "sites.here.work", exit=0)
    answer = hibali("config", "get", "sites.here.work", "--json", exit=3)
    assert "its default is ~/.hibali" in answer.last["message"]


def test_every_setting_is_listed_with_its_source(hibali: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / "raw").mkdir(parents=True)
    hibali("sites", "add", "lab_A", "--local", tmp_path / "data", "--no-check", exit=0)
    hibali("sites", "add", "far", "--ssh", "far", "--logins", "2", "--no-check", exit=0)
    hibali("config", "set", "default-site", "lab_A", exit=0)
    assert (
        hibali("config", "set", "default-site", "lab_B", "--json", exit=2).last["code"] == "invalid-setting"
    )
    assert hibali("ls", ":", exit=0).out == b"raw/\n"

    lines = check_lines(hibali("config", "list", "--json", exit=0).out)[:-1]
    found = {line["key"]: (line["value"], line["source"]) for line in lines}
    assert found["default_site"] == ("lab_A", "file")
    assert found["sites.far.ssh.logins"] == (2, "file")
    assert found["sites.far.ssh.channels"] == ("8", "default")
    assert found["sites.far.limits.poll"] == ("1m", "default")
    assert found["catalogue.allowed_signers"] == (None, "default")
    assert "sites.lab_A.ssh" not in found
    env = {"HIBALI_SITE": "far"}
    lines = hibali("config", "list", "--json", env=env, exit=0).lines
    [changed] = [line for line in lines if line.get("source") == "environment"]
    assert (changed["key"], changed["value"]) == ("default_site", "far")
    assert b"far" in hibali("config", "list", env=env, exit=0).out


def test_an_edited_copy_replaces_the_file_only_if_it_is_valid(hibali: Any, tmp_path: Path) -> None:
    path = write_config(hibali)
    editor(hibali, tmp_path, 'sed -i s,/work,/edited, "$2"')
    assert hibali("config", "edit", "--json", exit=0).last["changed"]
    assert path.read_text() == TEXT.replace("/work", "/edited")
    before = path.read_text()
    editor(hibali, tmp_path, 'echo wrong = 1 >> "$2"')
    answer = hibali("config", "edit", "--json", exit=2)
    assert path.read_text() == before
    copy = Path(answer.last["hint"].rpartition(" ")[2])
    assert copy.read_text() == before + "wrong = 1\n"
    assert copy.stat().st_mode & 0o777 == 0o600
    editor(hibali, tmp_path, 'sed -i /wrong/d "$2"')
    assert not hibali("config", "edit", "--from", copy, "--json", exit=0).last["changed"]
    editor(hibali, tmp_path, "exit 1")
    assert hibali("config", "edit", "--json", exit=6).last["code"] == "editor-failed"
    assert json.dumps(path.read_text()) == json.dumps(before)


def test_keys_are_completed_up_to_the_next_dot(hibali: Any) -> None:
    write_config(hibali)

    def completed(word: str) -> list[str]:
        env = {"_HIBALI_COMPLETE": "bash_complete", "COMP_LINE": f"hibali config get {word}"}
        return [line.partition(",")[2] for line in hibali(exit=0, env=env).out.decode().splitlines()]

    assert completed("sites.") == ["sites.here."]
    assert "sites.here.work" in completed("sites.here.w")
    assert "sites.here.limits." in completed("sites.here.l")
    assert "sites.here.limits.bandwidth" in completed("sites.here.limits.")
