"""Test `hibali pipelines ...`: exit codes, results on stdout, JSON against its schemas."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from registry.pipeline import split_reference
from tests.properties.descriptors import make_document, make_input

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "docs" / "schemas"
Hibali = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hibali(hibali: Any, tmp_path: Path) -> Hibali:
    """Return a callable that runs a command in the test's folder and returns its output as text."""
    own = {"HIBALI_STATE": str(tmp_path / "state"), "HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        answer = hibali(*arguments, env=own, cwd=tmp_path)
        return subprocess.CompletedProcess(arguments, answer.exit, answer.out.decode(), answer.err.decode())

    return run


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return path.name


def records(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for record in found:
        jsonschema.Draft202012Validator(
            json.loads((SCHEMAS / f"{record['kind']}.json").read_text())
        ).validate(record)
    return found


def test_catalogue_commands_work_together(hibali: Hibali, tmp_path: Path) -> None:
    tool = make_document(
        "tool [A] [F]", make_input("a"), make_input("f", "File", optional=True), name="My Tool"
    )
    file = write(tmp_path / "tool.json", tool)
    added = hibali("pipelines", "add", file)
    assert (added.returncode, added.stdout) == (0, "my-tool@1.0\n")
    assert hibali("pipelines", "add", file).returncode == 0
    listed = hibali("pipelines", "list", "--json")
    assert [each["kind"] for each in records(listed)] == ["pipeline", "end"]
    assert "my-tool" in hibali("pipelines", "search", "tool").stdout
    [shown] = records(hibali("pipelines", "show", "my-tool", "--json"))
    assert shown["descriptor"] == tool
    assert (shown["trusted"], shown["runnable"]) == (False, True)
    assert "NEEDED" in hibali("pipelines", "show", "my-tool").stdout
    assert records(hibali("pipelines", "trust", "my-tool@1.0", "--json"))[0]["trusted"]
    write(tmp_path / "invocation.json", {"a": "a", "f": "path/to/f"})
    [checked] = records(hibali("pipelines", "validate", file, "invocation.json", "--json"))
    assert checked["valid"]
    assert hibali("pipelines", "remove", "my-tool@1.0").returncode == 0
    gone = hibali("pipelines", "show", "my-tool", "--json")
    assert (gone.returncode, records(gone)[-1]["code"]) == (3, "no-such-pipeline")


def test_evaluate_shows_the_outputs_of_an_invocation(hibali: Hibali, tmp_path: Path) -> None:
    outputs = [
        {
            "id": "mask",
            "name": "mask",
            "path-template": "[F]_mask.nii",
            "path-template-stripped-extensions": [".nii"],
        },
        {"id": "all", "name": "all", "path-template": "x/[A]*.txt", "list": True, "optional": True},
        {
            "id": "deep",
            "name": "deep",
            "optional": True,
            "conditional-path-template": [{'a == "other"': "deep.txt"}],
        },
    ]
    tool = make_document(
        "tool [A] [F]", make_input("a"), make_input("f", "File"), **{"output-files": outputs}
    )
    file = write(tmp_path / "tool.json", tool)
    values = write(tmp_path / "values.json", {"a": "1*", "f": "data/scan.nii"})
    found = records(hibali("pipelines", "evaluate", file, values, "--json"))
    assert [(each["id"], each["path"], each["pattern"]) for each in found] == [
        ("mask", "scan_mask.nii", False),
        ("all", "x/1[*]*.txt", True),
    ]
    shown = hibali("pipelines", "evaluate", file, values)
    assert (shown.returncode, "scan_mask.nii" in shown.stdout) == (0, True)
    wrong = write(tmp_path / "wrong.json", {"a": 1})
    assert hibali("pipelines", "evaluate", file, wrong).returncode == 2


def test_validate_accepts_files_and_catalogue_pipelines(hibali: Hibali, tmp_path: Path) -> None:
    file = write(tmp_path / "tool.json", make_document("tool [A]", make_input("a"), name="My Tool"))
    hibali("pipelines", "add", file)
    (tmp_path / "invocation.json").write_text('{"a": "x"}')
    for word in ("my-tool", "my-tool@1.0"):
        [checked] = records(hibali("pipelines", "validate", word, "invocation.json", "--json"))
        assert (checked["file"], checked["valid"]) == ("my-tool@1.0", True)
    (tmp_path / "my-tool").write_text("{}")
    both = hibali("pipelines", "validate", "my-tool")
    assert (both.returncode, "./my-tool" in both.stderr) == (0, True)
    assert hibali("pipelines", "validate", "./my-tool").returncode == 2
    (tmp_path / "plain").write_text((tmp_path / file).read_text())
    assert hibali("pipelines", "validate", "plain").returncode == 0
    for word in ("my-tool@2.0", "nosuch", "nosuch.json"):
        assert hibali("pipelines", "validate", word).returncode == 3


def test_other_content_under_a_version_exits_8(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", make_input("a"))))
    other = make_document("other [A]", make_input("a"))
    refused = hibali("pipelines", "add", write(tmp_path / "two.json", other), "--json")
    assert (refused.returncode, records(refused)[-1]["code"]) == (8, "immutable-version")


def test_validate_reports_all_problems_at_once(hibali: Hibali, tmp_path: Path) -> None:
    file = write(tmp_path / "tool.json", make_document("tool [A] [B]", make_input("a"), make_input("b")))
    answers = write(tmp_path / "answers.json", {"b": 1, "c\u001b[31m": 2})
    refused = hibali("pipelines", "validate", file, answers, "--json")
    assert refused.returncode == 2
    [error] = records(refused)
    assert {each["path"] for each in error["problems"]} == {"a", "b", "c\u001b[31m"}
    assert "\u001b" not in refused.stderr
    broken = write(tmp_path / "broken.json", {"name": "x"})
    assert hibali("pipelines", "add", broken).returncode == 2
    assert hibali("pipelines", "validate", "absent.json").returncode == 3


def test_of_several_files_each_is_added_or_reported(hibali: Hibali, tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", make_document("one [A]", make_input("a")))
    broken = write(tmp_path / "broken.json", {"name": "x"})
    two = write(tmp_path / "two.json", {**make_document("two [A]", make_input("a")), "name": "two"})
    answer = hibali("pipelines", "add", one, broken, "absent.json", two, "--json")
    assert answer.returncode == 3
    assert [each["kind"] for each in records(answer)] == ["pipeline", "error", "pipeline", "error"]
    assert hibali("pipelines", "add", one, two, "--name", "other").returncode == 2


def test_every_message_about_a_file_names_it_and_the_line(hibali: Hibali, tmp_path: Path) -> None:
    tool = make_document(
        "tool [A] [N]", make_input("a", optional=True), make_input("n", "Number", optional=True)
    )
    good = write(tmp_path / "tool.json", tool)
    hibali("pipelines", "add", good)
    (tmp_path / "config.toml").write_text(
        f'version = 1\n[sites.here]\nkind = "local"\nroots = {{w = "{tmp_path}/w"}}\nwork = "{tmp_path}/w"\n'
    )
    names = {"half.json": '"\\ud800"', "huge.json": "1e999", "digits.json": "1" + "0" * 5000, "cut.json": "["}
    for name, value in names.items():
        (tmp_path / name).write_text(json.dumps({**tool, "custom": "?"}).replace('"?"', value))
        assert hibali("pipelines", "validate", name).stderr.startswith(f"hibali: {name}")
        (tmp_path / name).write_text('{\n"n": 1,\n"a": ' + value + "}")
        for arguments in (["pipelines", "validate", good, name], ["run", "tool", name, "--site", "here"]):
            refused = hibali(*arguments, "--config", "config.toml")
            assert (refused.returncode, refused.stderr.startswith(f"hibali: {name}")) == (2, True)
    answers = write(tmp_path / "answers.json", {"n": "x"})
    (tmp_path / "table.csv").write_text("n\nx\n")
    for name, arguments in (
        ("answers.json", [answers]),
        ("answers.json", [answers, "--param", "a=1,2"]),
        ("table.csv", ["--each", "table.csv"]),
    ):
        refused = hibali("run", "tool", *arguments, "--site", "here", "--dry-run", "--config", "config.toml")
        assert (refused.returncode, refused.stderr.startswith(f"hibali: {name}")) == (2, True), refused.stderr


def test_advice_on_an_invocation(hibali: Hibali, tmp_path: Path) -> None:
    tool = make_document(
        "tool [A] [B]",
        make_input("a", optional=True, disables_inputs=["b"]),
        make_input("b", optional=True, default_value="1"),
    )
    file = write(tmp_path / "tool.json", tool)
    (tmp_path / "answers.json").write_text('{"a": "x",\n"a": "x"}')
    [reported] = records(hibali("pipelines", "validate", file, "answers.json", "--json"))
    assert [(each["path"], each.get("line")) for each in reported["invocation_advice"]] == [
        ("a", 2),
        ("b", None),
    ]
    assert (
        "its default does not apply together with a"
        in hibali("pipelines", "validate", file, "answers.json").stderr
    )
    assert hibali("pipelines", "validate", "--strict", file, "answers.json").returncode == 2


def test_two_titles_with_one_catalogue_name_are_reported(hibali: Hibali, tmp_path: Path) -> None:
    for number, title in enumerate(("脑 Tool", "脑 Tool", "心 Tool")):
        tool = make_document("tool [A]", make_input("a"), name=title, **{"tool-version": f"{number}.0"})
        added = hibali("pipelines", "add", write(tmp_path / "tool.json", tool))
        assert (added.returncode, "'脑 Tool'" in added.stderr) == (0, number == 2)
    named = hibali(
        "pipelines", "add", write(tmp_path / "tool.json", {**tool, "tool-version": "3"}), "--name", "tool"
    )
    assert (named.returncode, "脑" in named.stderr) == (0, False)


def test_a_damaged_entry_is_named_and_the_list_is_incomplete(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", make_input("a"))))
    (tmp_path / "state" / "catalogue" / "tool" / "1.0" / "descriptor.json").write_text("{}")
    listed = hibali("pipelines", "list", "--json")
    assert (listed.returncode, records(listed)[-1]["exit"]) == (6, 6)
    assert "tool@1.0" in listed.stderr


def test_two_versions_are_compared(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", make_input("a"))))
    second = make_document("tool [A] [B]", make_input("a"), make_input("b"), **{"tool-version": "2.0"})
    hibali("pipelines", "add", write(tmp_path / "two.json", second))
    shown = hibali("pipelines", "diff", "tool@1.0", "tool@2.0")
    assert "! + input b: b\n" in shown.stdout
    reported = records(hibali("pipelines", "diff", "tool@1.0", "tool@2.0", "--json"))
    assert [(each["kind"], each.get("path")) for each in reported] == [
        ("difference", "command-line"),
        ("difference", "input b"),
        ("end", None),
    ]
    assert hibali("pipelines", "diff", "tool@1.0", "tool@2.0", "--detailed-exit-code").returncode == 10
    same = hibali("pipelines", "diff", "tool@1.0", "tool@1.0", "--detailed-exit-code")
    assert (same.returncode, same.stdout) == (0, "")


def test_an_old_descriptor_is_upgraded_without_changing_its_file(hibali: Hibali, tmp_path: Path) -> None:
    old = make_document("tool [A]", make_input("a"), **{"schema-version": "0.4", "walltime-estimate": 60})
    file = write(tmp_path / "old.json", old)
    refused = hibali("pipelines", "validate", file)
    assert (refused.returncode, "pipelines upgrade" in refused.stderr) == (2, True)
    (tmp_path / "new.json").write_text(hibali("pipelines", "upgrade", file).stdout)
    assert hibali("pipelines", "validate", "new.json").returncode == 0
    [reported] = records(hibali("pipelines", "upgrade", file, "--json"))
    assert reported["descriptor"]["suggested-resources"] == {"walltime-estimate": 60}
    assert json.loads((tmp_path / "old.json").read_text()) == old


def test_a_descriptor_of_styx_is_upgraded_and_the_changes_are_named(hibali: Hibali, tmp_path: Path) -> None:
    given = make_input("a", "File", mutable=True, resolve_parent=False)
    document = make_document("-tool [A]", given, name="-3dTool", schema_version="0.5+styx")
    del document["tool-version"]
    document["stdout-output"] = {"id": "info", "name": "Info"}
    file = write(tmp_path / "styx.json", document)
    assert "pipelines upgrade" in hibali("pipelines", "validate", file).stderr
    done = hibali("pipelines", "upgrade", file)
    for word in ("stdout-output: removed", "tool-version: it has none", "inputs[0].mutable: removed"):
        assert word in done.stderr
    assert "resolve-parent" not in done.stderr  # it said nothing
    (tmp_path / "new.json").write_text(done.stdout)
    assert hibali("pipelines", "add", "new.json").stdout.split()[0] == "3dtool@unknown"
    [reported] = records(hibali("pipelines", "upgrade", file, "--json"))
    assert [each["path"] for each in reported["changes"]] == [
        "stdout-output",
        "tool-version",
        "inputs[0].mutable",
    ]
    document["inputs"].append(make_input("b", type={"id": "sub", "command-line": "sub", "inputs": []}))
    refused = hibali("pipelines", "upgrade", write(tmp_path / "styx.json", document))
    assert (refused.returncode, refused.stdout, "inputs[1].type" in refused.stderr) == (2, "", True)


def test_a_name_that_looks_like_an_option_becomes_another_one(hibali: Hibali, tmp_path: Path) -> None:
    file = write(tmp_path / "tool.json", make_document("tool [A]", make_input("a"), name="-(tool)"))
    assert hibali("pipelines", "add", file).stdout.split()[0] == "tool-@1.0"
    refused = hibali("pipelines", "add", file, "--name=-tool")
    assert (refused.returncode, "must not begin with a dash" in refused.stderr) == (2, True)
    assert "--name tool" in refused.stderr
    assert split_reference("-tool@1") == ("-tool", "1")  # stored by an earlier version


def test_advice_is_shown_and_can_be_made_an_error(hibali: Hibali, tmp_path: Path) -> None:
    image = {"type": "docker", "image": "lab/tool:1"}
    file = write(tmp_path / "tool.json", make_document("tool [A]", make_input("a"), container_image=image))
    advised = hibali("pipelines", "validate", file)
    assert (advised.returncode, "not pinned" in advised.stderr) == (0, True)
    [reported] = records(hibali("pipelines", "validate", file, "--json"))
    assert [each["path"] for each in reported["advice"]] == ["container-image.image"]
    strict = hibali("pipelines", "validate", "--strict", file, "--json")
    assert (strict.returncode, records(strict)[-1]["problems"]) == (2, reported["advice"])


def test_valid_descriptors_of_a_folder_are_added(hibali: Hibali, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    write(tmp_path / "tools" / "one.json", make_document("tool [A]", make_input("a")))
    write(tmp_path / "tools" / "two.json", make_document("tool [A]", make_input("a"), name="two"))
    write(tmp_path / "tools" / "answers.json", {"a": "x"})
    assert hibali("pipelines", "add", "tools").stdout == "tool@1.0\ntwo@1.0\n"
    write(tmp_path / "tools" / "bad.json", {**make_document("tool", make_input("b")), "name": "bad"})
    partly = hibali("pipelines", "add", "tools", "--json")
    reported = records(partly)
    assert (partly.returncode, [each["kind"] for each in reported]) == (6, ["pipeline", "pipeline", "error"])
    assert "bad.json" in partly.stderr
    assert hibali("pipelines", "add", "tools", "--name", "x").returncode == 2
    (tmp_path / "empty").mkdir()
    assert hibali("pipelines", "add", "empty").returncode == 3


def test_changes_are_in_the_history_unless_disabled(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", make_input("a"))))
    assert (tmp_path / "state" / "catalogue" / ".git" / "refs" / "heads" / "main").exists()
    (tmp_path / "config.toml").write_text('version = 1\n[catalogue]\nkeep = "folder"\n')
    two = write(tmp_path / "two.json", make_document("tool [A]", make_input("a"), name="two"))
    head = (tmp_path / "state" / "catalogue" / ".git" / "refs" / "heads" / "main").read_text()
    assert hibali("pipelines", "add", two, "--config", "config.toml").returncode == 0
    assert (tmp_path / "state" / "catalogue" / ".git" / "refs" / "heads" / "main").read_text() == head
    (tmp_path / "config.toml").write_text(
        'version = 1\n[catalogue]\nkeep = "no"\norigins = ["x"]\nother = 1\n'
    )
    wrong = hibali("pipelines", "add", two, "--config", "config.toml", "--json")
    assert {each["key"] for each in records(wrong)[-1]["problems"]} == {
        "catalogue.keep",
        "catalogue.origins",
        "catalogue.other",
    }


def test_deprecated_pipelines_are_marked_in_all_output(hibali: Hibali, tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        document = make_document("tool [A]", make_input("a"), **{"tool-version": version})
        hibali("pipelines", "add", write(tmp_path / f"{version}.json", document))
    [reported] = records(
        hibali(
            "pipelines", "deprecate", "tool@1.0", "--successor", "tool", "--because", "wrong units", "--json"
        )
    )
    assert reported["deprecated"] == {"successor": "tool@2.0", "because": "wrong units"}
    assert "use tool@2.0; wrong units" in hibali("pipelines", "list").stdout
    assert "use tool@2.0" in hibali("pipelines", "show", "tool@1.0").stdout
    assert "deprecated" not in hibali("pipelines", "show", "tool@2.0").stdout
    assert hibali("pipelines", "deprecate", "tool@1.0", "--undo").returncode == 0
    assert "deprecated" not in hibali("pipelines", "list").stdout
    assert hibali("pipelines", "deprecate", "tool@1.0", "--undo", "--because", "x").returncode == 2
    assert hibali("pipelines", "deprecate", "other").returncode == 3
