"""Test expanding templates: arguments, environment, configuration files and expected outputs."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from hibali.errors import RefusedError, UsageError
from registry.command_line import CommandLine, ConfigurationFile, ExpectedOutput, build_command_line
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from tests.properties.descriptors import make_input, make_tool


def build(tool: Pipeline, values: dict[str, Any], **more: Any) -> CommandLine:
    return build_command_line(tool, check_invocation(tool, values), **more)


def output(path: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "out",
        "name": "Out",
        "path-template": path,
        **{k.replace("_", "-"): v for k, v in more.items()},
    }


def test_flags_separators_lists_and_absent_inputs() -> None:
    tool = make_tool(
        "tool [A] [B] [F] [G] [N] [L] [M] end",
        make_input("a", command_line_flag="-a"),
        make_input("b", optional=True, command_line_flag="--b", command_line_flag_separator="="),
        make_input("f", "Flag", optional=True, command_line_flag="-f"),
        make_input("g", "Flag", optional=True, command_line_flag="-g"),
        make_input("n", "Number", command_line_flag="-n", command_line_flag_separator=""),
        make_input("l", "Number", list=True, list_separator=","),
        make_input("m", list=True, optional=True),
    )
    made = build(tool, {"a": "x y", "f": True, "g": False, "n": -0.5, "l": [1, 2.5], "m": []})
    assert made.script == "tool -a 'x y' -f -n-0.5 1,2.5 end"
    assert shlex.split(build(tool, {"a": "", "b": "q;", "n": 1, "l": [1]}).script) == [
        "tool", "-a", "", "--b=q;", "-n1", "1", "end",
    ]  # fmt: skip


def test_files_have_the_paths_that_the_tool_sees() -> None:
    tool = make_tool(
        "tool [F] [L] [OUT]",
        make_input("f", "File"),
        make_input("l", "File", list=True),
        output_files=[
            output("[F]_out.txt", value_key="[OUT]", path_template_stripped_extensions=[".nii.gz"])
        ],
    )
    made = build(
        tool, {"f": "here/t1.nii.gz", "l": ["a", "b"]}, paths={"f": "/cache/t1.nii.gz", "l": ["/c/a", "/c/b"]}
    )
    assert made.script == "tool /cache/t1.nii.gz /c/a /c/b t1_out.txt"
    assert made.outputs == (ExpectedOutput("out", "t1_out.txt", False, False, False),)
    assert build(tool, {"f": "here/t1.nii.gz", "l": []}).outputs[0].path == "here/t1_out.txt"


def test_a_default_inside_the_image_names_outputs_by_its_last_component() -> None:
    tool = make_tool(
        "tool [F] [OUT]",
        make_input("f", "File", optional=True, default_value="/opt/atlas.nii"),
        output_files=[output("[F]_out.txt", value_key="[OUT]", path_template_stripped_extensions=[".nii"])],
        container_image={"type": "docker", "image": "a/b"},
    )
    made = build(tool, {}, work_folder="/scratch/run")
    assert (made.script, made.outputs[0].path) == ("tool /opt/atlas.nii atlas_out.txt", "atlas_out.txt")


def test_only_the_authors_wildcards_are_wildcards() -> None:
    tool = make_tool(
        "tool [A]", make_input("a"), output_files=[output("[A]/*.txt", list=True, optional=True)]
    )
    [found] = build(tool, {"a": "x[1]*"}).outputs
    assert found == ExpectedOutput("out", "x[[]1][*]/*.txt", True, True, True)
    plain = make_tool("tool [A]", make_input("a"), output_files=[output("./[A]//y")])
    assert build(plain, {"a": "x[1]*"}).outputs[0].path == "x[1]*/y"


@pytest.mark.parametrize("value", ["/abs", "../up", "a/../..", "a\n/../../b"])
def test_outputs_outside_the_work_folder_are_refused(value: str) -> None:
    tool = make_tool("tool [A]", make_input("a"), output_files=[output("[A]/x")])
    with pytest.raises(UsageError) as refused:
        build(tool, {"a": value})
    assert refused.value.code == "output-outside-work-folder"


def test_absolute_outputs_inside_the_work_folder_are_accepted() -> None:
    tool = make_tool(
        "tool [A] [OUT]",
        make_input("a"),
        output_files=[output("[A]/x", value_key="[OUT]", uses_absolute_path=True)],
    )
    made = build(tool, {"a": "sub"}, work_folder="/scratch/run")
    assert (made.script, made.outputs[0].path) == ("tool sub /scratch/run/sub/x", "sub/x")
    with pytest.raises(UsageError) as refused:
        build(tool, {"a": "sub"})
    assert refused.value.code == "work-folder-unknown"


def test_a_path_made_of_an_absolute_output_is_absolute() -> None:
    """This is true in the command, another output's path, a condition, a configuration file and a variable."""
    first = {"id": "o1", "name": "O", "value-key": "[O1]", "path-template": "a", "uses-absolute-path": True}
    second = {"id": "o2", "name": "O", "value-key": "[O2]", "path-template": "[O1]_x"}
    third = {**conditional(("o1 == '/scratch/run/a'", "[O2]_y"), ("default", "no")), "value-key": "[O3]"}
    file = {"id": "c", "name": "C", "path-template": "c.txt", "file-template": ["[O2]"]}
    variables = [{"name": "PLACE", "value": "[O2]"}]
    outputs = [first, second, third, file]
    tool = make_tool("tool [O1] [O2] [O3]", output_files=outputs, environment_variables=variables)
    made = build(tool, {}, work_folder="/scratch/run")
    assert made.script == "tool /scratch/run/a /scratch/run/a_x /scratch/run/a_x_y"
    assert [each.path for each in made.outputs] == ["a", "a_x", "a_x_y"]
    assert made.configuration_files[0].content == "/scratch/run/a_x"
    assert made.environment == {"PLACE": "/scratch/run/a_x"}


def test_the_key_of_another_output_in_a_path_and_one_of_an_absent_input() -> None:
    first = {"id": "dir", "name": "Dir", "path-template": "res-[A]", "value-key": "[DIR]"}
    tool = make_tool(
        "tool [A] [DIR] [OUT]",
        make_input("a"),
        make_input("b", optional=True),
        output_files=[first, output("[DIR]/[B].txt", value_key="[OUT]")],
    )
    made = build(tool, {"a": "x y"})
    assert shlex.split(made.script) == ["tool", "x y", "res-x y", "res-x y/[B].txt"]
    assert made.outputs[1].path == "res-x y/[B].txt"


def test_two_inputs_with_one_key() -> None:
    pair = [make_input(each, optional=True, value_key="[K]", command_line_flag=f"-{each}") for each in "ab"]
    group = {"id": "g", "name": "G", "members": ["a", "b"], "mutually-exclusive": True}
    tool = make_tool("tool [K] end", *pair, groups=[group])
    assert build(tool, {"b": "x"}).script == "tool -b x end"
    assert build(tool, {}).script == "tool end"


def test_configuration_files_hold_values_as_data() -> None:
    template = ["# [A]", 'a = "[A]"', "gone = [B]", "flag = [F]", "l = [L]", "end"]
    tool = make_tool(
        "tool [OUT]",
        make_input("a"),
        make_input("b", optional=True),
        make_input("f", "Flag", optional=True, command_line_flag="-f"),
        make_input("l", "Number", list=True, list_separator=", "),
        output_files=[
            output("conf/x.toml", value_key="[OUT]", command_line_flag="-c", file_template=template)
        ],
    )
    made = build(tool, {"a": "it's; $(x) [L]", "f": True, "l": [1, 2]})
    assert made.script == "tool -c conf/x.toml"
    assert made.outputs == ()
    content = "# it's; $(x) [L]\na = \"it's; $(x) [L]\"\n\nflag = True\nl = 1, 2\nend"
    assert made.configuration_files == (ConfigurationFile("out", "conf/x.toml", content),)
    with pytest.raises(UsageError):
        build(tool, {"a": "x\nb = evil", "l": []})


@pytest.mark.parametrize(("path", "first"), [("x.sh", "echo"), ("x.PY", "print"), ("x", "#!/bin/sh")])
def test_configuration_files_that_are_scripts_accept_only_safe_values(path: str, first: str) -> None:
    tool = make_tool(
        "sh [OUT]",
        make_input("a"),
        output_files=[output(path, value_key="[OUT]", file_template=[first, "[A]"])],
    )
    assert build(tool, {"a": "a/b.c"}).configuration_files[0].content == f"{first}\na/b.c"
    with pytest.raises(UsageError) as refused:
        build(tool, {"a": "$(touch pwned)"})
    assert refused.value.code == "unquotable-value"


def test_environment() -> None:
    variables = [
        {"name": "PLAIN", "value": "a b"},
        {"name": "WHOLE", "value": "[A]"},
        {"name": "PART", "value": "x-[A]-[B]"},
        {"name": "ABSENT", "value": "[B]"},
    ]
    tool = make_tool("tool", make_input("a"), make_input("b", optional=True), environment_variables=variables)
    expected = {"PLAIN": "a b", "WHOLE": "$(x) [B]", "PART": "x-$(x) [B]-"}
    assert build(tool, {"a": "$(x) [B]"}).environment == expected


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "BASH_ENV",
        "ENV",
        "PYTHONPATH",
        "SLURM_JOB_ID",
        "APPTAINER_BIND",
        "SINGULARITYENV_X",
        "DOCKER_HOST",
        "HIBALI_STATE",
        "a,b",
        "A\n",
        "1A",
        "",
    ],
)
def test_dangerous_variables_are_refused(name: str) -> None:
    tool = make_tool("tool", environment_variables=[{"name": name, "value": "x"}])
    with pytest.raises(RefusedError) as refused:
        build(tool, {})
    assert refused.value.exit == 8


@pytest.mark.parametrize(
    ("given", "shell"),
    [
        (None, "sh"),
        ("/bin/bash", "bash"),
        ("sh", "sh"),
        ("/usr/bin/bash", "bash"),
        ("bash", "bash"),
        ("/usr/local/bin/bash", "bash"),
        ("/bin/bash ", "bash"),
        ("\t/bin/sh\n", "sh"),
    ],
)
def test_shells(given: str | None, shell: str) -> None:
    assert build(make_tool("tool", **({"shell": given} if given else {})), {}).shell == shell


@pytest.mark.parametrize(
    "shell",
    [
        "/bin/zsh",
        "/bin/sh -c",
        "python3",
        "/tmp/sh/",
        "/tmp/evil/bash",
        "./bash",
        "bin/bash",
        "/bin/../tmp/bash",
        "//bin/bash",
        " ",
    ],
)
def test_other_shells_are_refused(shell: str) -> None:
    with pytest.raises(UsageError) as refused:
        build(make_tool("tool", shell=shell), {})
    assert refused.value.code == "unknown-shell"


def conditional(*conditions: tuple[str, str], **more: Any) -> dict[str, Any]:
    paths = [{condition: path} for condition, path in conditions]
    return {
        "id": "o",
        "name": "O",
        "value-key": "[O]",
        "optional": True,
        "conditional-path-template": paths,
        **more,
    }


@pytest.mark.parametrize(
    ("answers", "path"),
    [({"n": 3, "s": "x"}, "x-large"), ({"n": 2, "s": "x"}, "x"), ({"n": 3}, "plain"), ({}, "plain")],
)
def test_the_first_condition_that_holds_names_the_output(answers: dict[str, Any], path: str) -> None:
    output = conditional(("s and (n>2)", "[S]-large"), ("s", "[S]"), ("default", "plain"))
    inputs = [make_input("n", "Number", optional=True), make_input("s", optional=True)]
    made = build(make_tool("tool [O]", *inputs, output_files=[output]), answers)
    assert (made.script, made.outputs[0].path) == (f"tool {path}", path)


def test_an_output_whose_conditions_all_fail_is_not_expected() -> None:
    output = conditional(("n > 2", "large"), command_line_flag="-o")
    made = build(make_tool("tool [O] end", make_input("n", "Number"), output_files=[output]), {"n": 1})
    assert (made.script, made.outputs) == ("tool end", ())


def test_a_condition_can_depend_on_another_output() -> None:
    first = {"id": "first", "name": "F", "path-template": "[S].txt"}
    output = conditional(("first == 'a.txt'", "for-a"), ("default", "for-others"))
    tool = make_tool("tool [S] [O]", make_input("s"), output_files=[first, output])
    assert build(tool, {"s": "a"}).script == "tool a for-a"
    assert build(tool, {"s": "b"}).script == "tool b for-others"


def test_outputs_that_depend_on_each_other_do_not_recurse_forever() -> None:
    one = {**conditional(("two == 'x'", "y"), ("default", "x")), "id": "one", "value-key": "[ONE]"}
    two = {**conditional(("one == 'x'", "y"), ("default", "x")), "id": "two", "value-key": "[TWO]"}
    assert build(make_tool("tool [ONE]", output_files=[one, two]), {}).outputs


def test_a_condition_with_code_is_refused_for_all_values() -> None:
    output = conditional(("__import__('os').system('true')", "x"), ("default", "y"))
    with pytest.raises(UsageError) as refused:
        build(make_tool("tool", output_files=[output]), {})
    assert (refused.value.code, refused.value.exit) == ("bad-condition", 2)


@pytest.mark.parametrize(
    "template",
    [
        "'[A]'",
        '"[A]"',
        "`[A]`",
        "$([A])",
        "${x:-[A]}",
        "$'[A]'",
        "# [A]",
        "cat <<E\n[A]\nE\n",
        "cat <<[A]",
        "\\[A]",
        "$[A]",
        '"$(x "[A]")"',
    ],
)
def test_inside_quotes_hostile_values_are_refused(template: str) -> None:
    tool = make_tool(f"echo {template}", make_input("a"))
    with pytest.raises(UsageError) as refused:
        build(tool, {"a": "$(touch pwned)"})
    assert (refused.value.code, refused.value.subject) == ("unquotable-value", "a")


def test_after_the_authors_quotes_all_values_are_accepted() -> None:
    tool = make_tool("x=`pwd`; y=\"$x\" 'it' # it's\necho [A]", make_input("a"))
    assert build(tool, {"a": "$(x)"}).script.endswith("echo '$(x)'")


@pytest.mark.parametrize(
    "template",
    [
        "x=$(( 1 << 2 ))\necho [A]",
        "cat <<< [A]",
        "( cd x; y [A] )",
        "diff <( echo [A] ) >( cat )",
        "y=$(echo hi # don't\n); z [A]",
        "awk '{print $1}' [A]",
        "x=${y%.*}; x=\"${y:-'q'}\"; z [A]",
        "echo $# a#b [A]",
        "case x in (a) z [A];; esac",
        "if [ -f [A] ]; then true; fi",
        'x=`echo "a"`; y [A]',
        "echo $'it\\'s' [A]",
        "cat <<E > f\nit's $y\nE\ny [A]",
        "cat <<-'E'\n\tit's $y\n\tE\ny [A]",
        'echo "it\'s \\" so" [A]',
    ],
)
def test_ordinary_shell_syntax_accepts_all_values(template: str) -> None:
    shell = "/bin/bash" if "$'" in template else "/bin/sh"
    tool = make_tool(template, make_input("a"), shell=shell)
    assert build(tool, {"a": "a b"}).script == template.replace("[A]", "'a b'")


@pytest.mark.parametrize(
    "template",
    ["echo $'it\\'s' [A]", "cat <<'E F' [A]\nE F\n", "cat <<E\na\\\nE\n[A]\nE\n"],
)
def test_no_value_follows_text_that_shells_read_differently(template: str) -> None:
    """Some sh have no quotes `$'...'`; the end of such here-documents is not certain."""
    with pytest.raises(UsageError) as caught:
        build(make_tool(template, make_input("a")), {"a": "plain"})
    assert caught.value.code == "unquotable-value"
