"""Test that values reach the tool unchanged or are refused, and that nothing in them is run (S8)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hibali.errors import UsageError
from registry.command_line import build_command_line
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from tests.properties.descriptors import make_input, make_tool

SHELLS = ("sh", "bash")
HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned;",
    "' ; touch pwned ; '",
    '" ; touch pwned ; "',
    "\\' ; touch pwned ; \\'",
    "\ntouch pwned\n",
    "\nE\ntouch pwned\n",
    "E",
    "|touch pwned",
    "&& touch pwned",
    "> pwned",
    ")touch pwned",
    "}; touch pwned",
    "[B]",
    "${IFS}",
    "-n",
    "--help",
    "~",
    "*",
    "a b",
    "",
    "a=b",
    "é\u202e\U0001f600",
    "\t",
    "!!",
    "if",
    "2",
)
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.text(alphabet=" '\"`$(){}\\;&|<>\n#=!*?[]ABE-~", max_size=12),
)
# Templates with one key; if the value is accepted, the tool receives it as its last argument.
QUOTED_TEMPLATES = (
    "printf '%s\\0' '[A]'",
    "printf '%s\\0' \"[A]\"",
    "printf '%s\\0' \"$(printf %s. [A] | sed 's/\\.$//')\"",
    "x=[A]\nprintf '%s\\0' \"$x\"",
    "printf '%s\\0' \"${unset_name:-[A]}\"",
    "# don't [A]\nprintf '%s\\0' [A]",
    "cat > /dev/null <<E\n[A]\nE\nprintf '%s\\0' [A]",
    "cat > /dev/null <<-'E'\n\t[A]\n\tE\nprintf '%s\\0' [A]",
)
AUTHOR_TOKENS = st.lists(
    st.sampled_from(
        [
            "'",
            '"',
            "`",
            "$(",
            ")",
            "(",
            "\\",
            "#",
            "\n",
            " ",
            "a",
            "$",
            "$'",
            "${x:-",
            "}",
            "<<E",
            "<<-'E'",
            "\nE\n",
            "E",
            "<",
            "=",
            "echo ",
        ]
    ),
    max_size=10,
).map("".join)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run_line(pipeline: Pipeline, values: dict[str, object], shell: str) -> list[str]:
    """Return the arguments that the tool received, in an empty folder that must stay empty."""
    script = build_command_line(pipeline, check_invocation(pipeline, values)).script
    with tempfile.TemporaryDirectory() as folder:
        done = _run(script, shell, folder)
        assert os.listdir(folder) == [], script  # noqa: PTH208  # names alone
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout.decode("utf-8").split("\0")[:-1]


def _run(script: str, shell: str, folder: str) -> subprocess.CompletedProcess[bytes]:
    Path(folder, "script").write_text(script, encoding="utf-8", newline="")
    done = subprocess.run(
        [shell, "script"],
        cwd=folder,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        timeout=20,
    )
    Path(folder, "script").unlink()
    return done


@quick
@given(VALUES, VALUES, st.lists(VALUES, max_size=3), st.sampled_from(SHELLS))
@example("$(touch /tmp/pwned)", "[A]", ["; touch x;"], "sh")
def test_values_reach_the_tool_unchanged(first: str, second: str, several: list[str], shell: str) -> None:
    tool = make_tool(
        "printf '%s\\0' [A] --second=[B] [LIST] end",
        make_input("a"),
        make_input("b", command_line_flag="-b", command_line_flag_separator="="),
        make_input("list", list=True, optional=True),
    )
    expected = [first, f"--second=-b={second}", *several, "end"]
    assert run_line(tool, {"a": first, "b": second, "list": several}, shell) == expected


@quick
@given(
    VALUES,
    VALUES,
    st.sampled_from([",", ";", " ; ", "\n", "|", "&", "\\;", "' '", "::"]),
    st.sampled_from(SHELLS),
)
def test_a_separator_never_ends_the_command(first: str, second: str, separator: str, shell: str) -> None:
    tool = make_tool("printf '%s\\0' [LIST]", make_input("list", list=True, list_separator=separator))
    [arrived] = run_line(tool, {"list": [first, second]}, shell)
    expected = {"\\;": ";", "' '": " "}.get(separator, separator)
    assert arrived == first + expected + second


@quick
@given(st.sampled_from(QUOTED_TEMPLATES), VALUES, st.sampled_from(SHELLS))
def test_inside_the_authors_quotes_a_value_is_unchanged_or_refused(
    template: str, value: str, shell: str
) -> None:
    tool = make_tool(template, make_input("a"))
    refusal = None
    arrived = [value]
    try:
        arrived = run_line(tool, {"a": value}, shell)
    except UsageError as refused:
        refusal = refused.code
    assert refusal in {None, "unquotable-value"}
    assert arrived == [value]


@settings(quick, max_examples=150)
@given(AUTHOR_TOKENS, AUTHOR_TOKENS, st.sampled_from(HOSTILE), st.sampled_from(SHELLS))
@example("echo <<", " ", "E", "sh")
@example("cat <<E\n", "\ntouch pwned\nE\n", "E", "sh")
@example("<<E'$(", "'", "; touch pwned;", "sh")
@example("$'\\''", "'", "; touch pwned;", "sh")
@example("\\\n#", "", "\ntouch pwned\n", "bash")
@example("cat <\\\n<E\n", "\nE\n", "\nE\ntouch pwned\n", "bash")
@example("cat <<E\na\\\nE\n", "", "\nE\ntouch pwned\n", "bash")
@example('cat <<"E ', '"', "; touch pwned;", "bash")
@example("cat <<E\\ F ", "\n", "; touch pwned;", "sh")
def test_no_value_is_run_in_any_template(before: str, after: str, value: str, shell: str) -> None:
    """For templates that are invalid shell text, the value may be refused or the shell may fail, no more."""
    tool = make_tool(f"{before}[A]{after}", make_input("a"), shell=f"/bin/{shell}")  # noqa: S604  # a key of the descriptor
    try:
        script = build_command_line(tool, check_invocation(tool, {"a": value})).script
    except UsageError:
        return
    if "touch" in before + after:
        pytest.fail(f"a value ended the author's here-document: {script!r}")
    with tempfile.TemporaryDirectory() as folder:
        _run(script, shell, folder)
        assert not Path(folder, "pwned").exists(), script


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("template", "arguments"),
    [
        ("$(printf '<%s>' a [A] z)", ["<a><><z>"]),
        ("\"$(printf '<%s>' a [A] z)\"", ["<a><><z>"]),
        ("`printf '<%s>' a [A] z`", ["<a><><z>"]),
        ("\"`printf '<%s>' a [A] z`\"", ["<a><><z>"]),
        ("$( (printf '<%s>' [A] z) )", ["<><z>"]),
        ("$(printf '<%s>' [FLAG] z)", ["<--flag><><z>"]),
        ("$(printf '<%s>' [JOINED] z)", ["<--joined=><z>"]),
        ("$(printf '<%s>' [LIST] z)", ["<><b><><z>"]),
        ("$(printf '<%s>' [COMMAS] z)", ["<,b,><z>"]),
        ("$(printf '<%s>' \"[A]\" z)", ["<><z>"]),
        ("$(printf '<%s>' '[A]' \"x${y:-[A]}\")", ["<><x>"]),
        ("$(( 1 + [A] 2 ))", ["3"]),
        ("$(echo $(( ( 1 + [A] 2 ) )) [A])", ["3"]),
        ("'[A]' \"[A]\" x[A]", ["", "", "x"]),
        ("[A] [LIST]", ["", "", "b", ""]),
    ],
)
def test_an_empty_value_stays_an_argument_despite_word_splitting(
    template: str, arguments: list[str], shell: str
) -> None:
    tool = make_tool(
        f"printf '%s\\0' {template}",
        make_input("a"),
        make_input("flag", command_line_flag="--flag"),
        make_input("joined", command_line_flag="--joined", command_line_flag_separator="="),
        make_input("list", list=True),
        make_input("commas", list=True, list_separator=","),
    )
    empty = ["", "b", ""]
    values = {"a": "", "flag": "", "joined": "", "list": empty, "commas": empty}
    assert run_line(tool, values, shell) == arguments


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_that_equals_another_key_is_not_replaced_again(shell: str) -> None:
    tool = make_tool("printf '%s\\0' [A] [B]", make_input("a"), make_input("b"))
    assert run_line(tool, {"a": "[B]", "b": "[A]"}, shell) == ["[B]", "[A]"]


@pytest.mark.parametrize("value", ["A=1", "if", "then", "~root"])
def test_a_value_in_command_position_is_one_word(value: str) -> None:
    """It is neither an assignment nor a reserved word, but an unknown command with arguments."""
    tool = make_tool("[A] true", make_input("a"))
    with tempfile.TemporaryDirectory() as folder:
        done = _run(build_command_line(tool, check_invocation(tool, {"a": value})).script, "sh", folder)
    assert done.returncode == 127


@quick
@given(VALUES)
def test_a_value_in_an_output_path_cannot_leave_the_work_folder(value: str) -> None:
    tool = make_tool(
        "touch [OUT]",
        make_input("a"),
        output_files=[{"id": "out", "name": "Out", "value-key": "[OUT]", "path-template": "[A]/x.txt"}],
    )
    for hostile in (f"../{value}", f"/{value}", f"a/../../{value}"):
        with pytest.raises(UsageError) as refused:
            build_command_line(tool, check_invocation(tool, {"a": hostile}))
        assert refused.value.code == "output-outside-work-folder"
