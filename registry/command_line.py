"""Build the command line of an invocation, its configuration files and output paths."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hibali.errors import RefusedError, UsageError
from hibali.text import printable
from registry.condition import DEFAULT, Condition, read_condition
from registry.invocation import Invocation, is_in_image
from registry.pipeline import Input, OutputFile, Pipeline
from registry.shell_text import ShellText, read_shell

Paths = Mapping[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Key:
    """A value-key found in a template."""

    text: str


@dataclass(frozen=True, slots=True)
class TemplateContext:
    """The values of a template's keys: the pipeline, the checked input values and the paths of the files."""

    pipeline: Pipeline
    values: Mapping[str, Any]
    paths: Paths
    work_folder: str | None

    def find_owner(self, key: Key) -> Input | OutputFile | None:
        """Return the input or output that replaces the key: the first input with a value, else an output; None where absent."""
        present = [
            each for each in self.pipeline.inputs if each.value_key == key.text and each.id in self.values
        ]
        if present:
            return next((each for each in present if self.values[each.id] is not False), present[0])
        return next((each for each in self.pipeline.outputs if each.value_key == key.text), None)

    def is_read_only(self, tool_input: Input) -> bool:
        """Return whether the folder of the input file is read-only: hibali staged the file, or it is in the image."""
        in_image = is_in_image(self.pipeline, tool_input, self.values[tool_input.id])
        return tool_input.id in self.paths or in_image

    def items(self, tool_input: Input) -> list[str]:
        """Return the value as texts, one for a single value; a File is the path that the tool sees."""
        input_value = self.paths.get(tool_input.id, self.values[tool_input.id])
        return [str(value) for value in input_value] if isinstance(input_value, list) else [str(input_value)]


def make_context(
    pipeline: Pipeline, invocation: Invocation, paths: Paths | None, work_folder: str | None
) -> TemplateContext:
    """Return the context of one run; `paths` has only inputs with a value."""
    return TemplateContext(pipeline, invocation.values, paths or {}, work_folder)


def split_template(template: str, pipeline: Pipeline) -> Iterator[str | Key]:
    """Split a template into text and keys, from left to right; the longest key matches first."""
    keys = {each.value_key for each in pipeline.inputs} | {each.value_key for each in pipeline.outputs}
    keys.discard("")
    if not keys:
        yield template
        return
    pattern = re.compile("|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True)))
    end = 0
    for found in pattern.finditer(template):
        if found.start() > end:
            yield template[end : found.start()]
        yield Key(found.group())
        end = found.end()
    if end < len(template):
        yield template[end:]


def fill_template(
    template: str, pipeline: Pipeline, text_of: Callable[[Key, bool], str | None]
) -> Iterator[tuple[str, bool, bool]]:
    """Yield pieces of the filled template: the text, whether it is a value, and whether that value is present.

    `text_of` gets the key and whether the template begins with it; where it returns None, the key itself is kept.
    """
    first: dict[str, str | None] = {}
    at_beginning = True
    for piece in split_template(template, pipeline):
        if isinstance(piece, str):
            at_beginning = False
            yield piece, False, True
            continue
        if piece.text not in first:
            first[piece.text] = text_of(piece, at_beginning)
        text = first[piece.text]
        at_beginning = at_beginning and text == ""
        yield (piece.text, True, False) if text is None else (text, True, True)


def text_of_input(
    context: TemplateContext, tool_input: Input, stripped: tuple[str, ...], *, only_names: bool = False
) -> str:
    """Return a value as plain text for paths, files and the environment: without flags, quotes and stripped extensions.

    With `only_names` each path is replaced by its last component.
    """
    items = context.items(tool_input)
    if only_names:
        items = [name_of_file(each.rstrip("/")) for each in items]
    text = tool_input.list_separator.join(items)
    if tool_input.kind in {"File", "String"}:
        for extension in stripped:
            text = text.replace(extension, "") if extension else text
    return text


def name_of_file(text: str) -> str:
    """Return the last component of a path."""
    return posixpath.basename(text)


_WILDCARD = re.compile(r"[*?\[]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SAFE = re.compile(r"[A-Za-z0-9_./:=@%+,-]*")
_SCRIPT_ENDINGS = (
    ".sh",
    ".bash",
    ".csh",
    ".tcsh",
    ".zsh",
    ".py",
    ".r",
    ".m",
    ".pl",
    ".rb",
    ".tcl",
    ".jl",
    ".js",
    ".lua",
)


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """A file that the run should produce: `path` is relative to the work folder, normalised, without `..`.

    With `is_pattern` it is a glob in which only the author's wildcards are active (values are escaped);
    `is_list`: it may match several files.
    """

    id: str
    path: str
    optional: bool
    is_list: bool
    is_pattern: bool


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """A file that hibali writes into the work folder before the command starts; `path` as in `ExpectedOutput`."""

    id: str
    path: str
    content: str


def is_produced(context: TemplateContext, output: OutputFile) -> bool:
    """Return whether the tool produces this output with these values; raises `UsageError` for a condition that cannot be evaluated."""
    return _path_template(context, output, frozenset()) is not None


def output_text(context: TemplateContext, output: OutputFile) -> str:
    """Return the path of an output as the tool gets it."""
    return _absolute(context, output, _joined(_fill_path(context, output, frozenset())))


def expect_output(context: TemplateContext, output: OutputFile) -> ExpectedOutput:
    """Return the expected path of the output; raises `UsageError` when it is outside the work folder."""
    pieces = list(_fill_path(context, output, frozenset()))
    is_pattern = any(_WILDCARD.search(text) for text, is_value, _ in pieces if not is_value)
    text = "".join(glob.escape(text) if is_value and is_pattern else text for text, is_value, _ in pieces)
    return ExpectedOutput(
        output.id, _inside(context, text, output.id), output.optional, output.is_list, is_pattern
    )


def write_configuration(context: TemplateContext, output: OutputFile) -> ConfigurationFile:
    """Return the content of a configuration file; a line that names an absent input is empty, as in the reference.

    Values are inserted unchanged: the file is data. In a script they may only have characters without a meaning in shells.
    Raises `UsageError`.
    """
    path = _inside(context, _joined(_fill_path(context, output, frozenset())), output.id)
    is_script = output.file_template[0].startswith("#!") or path.lower().endswith(_SCRIPT_ENDINGS)
    lines = []
    for line in output.file_template:
        pieces = list(fill_template(line, context.pipeline, lambda key, _: _plain_text(context, key, output)))
        for text, is_value, _ in pieces:
            if is_value:
                _check_configured(text, output.id, is_script=is_script)
        lines.append("".join(text for text, _, _ in pieces) if all(there for _, _, there in pieces) else "")
    return ConfigurationFile(output.id, path, "\n".join(lines))


def plain_value(context: TemplateContext, key: Key) -> str | None:
    """Return the value of a key as plain text; None where it is absent."""
    owner = context.find_owner(key)
    if owner is None:
        return None
    if isinstance(owner, Input):
        return text_of_input(context, owner, ())
    return output_text(context, owner) if is_produced(context, owner) else None


def _plain_text(context: TemplateContext, key: Key, output: OutputFile) -> str | None:
    owner = context.find_owner(key)
    if isinstance(owner, Input):
        return text_of_input(context, owner, output.stripped_extensions)
    return None if owner is None or not is_produced(context, owner) else output_text(context, owner)


def _joined(pieces: list[tuple[str, bool, bool]]) -> str:
    return "".join(text for text, _, _ in pieces)


def _absolute(context: TemplateContext, output: OutputFile, text: str) -> str:
    """Return the path of an output as other outputs get it: absolute where its author wants that."""
    if not output.uses_absolute_path or posixpath.isabs(text):
        return text
    if context.work_folder is None:
        raise UsageError(
            "work-folder-unknown",
            "this output needs an absolute path, but the work folder is not known",
            subject=output.id,
        )
    return posixpath.normpath(posixpath.join(context.work_folder, text))


def _path_template(context: TemplateContext, output: OutputFile, seen: frozenset[str]) -> str | None:
    """Return the path template to use; None where no condition holds, and for an output whose condition depends on itself."""
    if not output.conditions:
        return output.path_template
    known = context.pipeline.ids
    for text, template in output.conditions:
        if text == DEFAULT:
            return template
        condition = read_condition(text, known)
        if condition.holds(_condition_values(context, condition, seen | {output.id})):
            return template
    return None


def _condition_values(context: TemplateContext, condition: Condition, seen: frozenset[str]) -> dict[str, Any]:
    """Return the values that a condition can use: those of inputs, and the paths of other outputs."""
    usable = [each for each in context.pipeline.outputs if each.id in condition.ids and each.id not in seen]
    paths = {
        each.id: _absolute(context, each, _joined(_fill_path(context, each, seen)))
        for each in usable
        if _path_template(context, each, seen) is not None
    }
    return {**paths, **context.values}


def _fill_path(
    context: TemplateContext, output: OutputFile, seen: frozenset[str]
) -> list[tuple[str, bool, bool]]:
    """Return the pieces of a path-template. An absent key is kept in it, as in the reference."""

    def text_of(key: Key, at_beginning: bool) -> str | None:  # noqa: FBT001  # the signature is fill_template's
        owner = context.find_owner(key)
        if isinstance(owner, Input):
            if context.is_read_only(owner):
                return text_of_input(context, owner, output.stripped_extensions, only_names=True)
            text = text_of_input(context, owner, output.stripped_extensions)
            return name_of_file(text) if owner.kind == "File" and not at_beginning else text
        if owner is None or owner.id in seen or owner.id == output.id:
            return None
        if _path_template(context, owner, seen | {output.id}) is None:
            return None
        return _absolute(context, owner, _joined(_fill_path(context, owner, seen | {output.id})))

    template = _path_template(context, output, seen)
    return list(fill_template(template or "", context.pipeline, text_of))


def _inside(context: TemplateContext, path: str, subject: str) -> str:
    """Return the path relative to the work folder, normalised; raises `UsageError` when it leads outside."""
    normal = posixpath.normpath(path) if path else ""
    folder = context.work_folder
    if folder and posixpath.isabs(normal):
        normal = posixpath.relpath(normal, folder)
    if not normal or normal == ".." or normal.startswith(("../", "/")) or "\0" in normal:
        raise UsageError(
            "output-outside-work-folder",
            f"this output would be written to {printable(path) or 'an empty path'}, outside the run's work folder",
            subject=subject,
            hint="Give a relative path inside the work folder: other files cannot be collected.",
        )
    return normal


def _check_configured(text: str, subject: str, *, is_script: bool) -> None:
    if is_script and not _SAFE.fullmatch(text):
        raise UsageError(
            "unquotable-value",
            "in a configuration file that is a script, values can only have ASCII letters, digits and _./:=@%+,-",
            subject=subject,
            hint="Give another value.",
        )
    if _CONTROL.search(text):
        raise UsageError(
            "unquotable-value",
            "the value has a control character, which would start a new line of this configuration file",
            subject=subject,
            hint="Give another value.",
        )


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = re.compile(
    r"LD_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|IFS|PYTHON.*|HIBALI_.*"  # start of programs and shells
    r"|APPTAINER.*|SINGULARITY.*|DOCKER_.*|PODMAN.*|CONTAINERS_.*|CH_.*|SARUS_.*|SHIFTER.*|ENROOT_.*|PYXIS_.*|EDF_.*"  # variables of container runtimes
    r"|SLURM_.*|SBATCH_.*|SRUN_.*|OAR_.*|PBS_.*|SGE_.*|LSB_.*",  # variables of schedulers
    re.DOTALL,
)
# Published tools set some of these (PATH, CLASSPATH, R_LIBS); therefore they need consent and are not refused.
_CONSENT = re.compile(
    r"PATH|(?i:.*_proxy)"
    # variables that glibc removes for privileged programs (sysdeps/generic/unsecvars.h) but TMPDIR, and macOS' loader
    r"|GLIBC_TUNABLES|GCONV_PATH|GETCONF_DIR|HOSTALIASES|LOCALDOMAIN|LOCPATH|MALLOC_TRACE|NIS_PATH|NLSPATH"
    r"|RESOLV_HOST_CONF|RES_OPTIONS|TZDIR|DYLD_.*"
    # shells, and programs that other programs start
    r"|PROMPT_COMMAND|BASH_.*|CDPATH|FPATH|ZDOTDIR|GLOBIGNORE|EXECIGNORE|INPUTRC|SHELL|PS[0-3]"
    r"|EDITOR|VISUAL|FCEDIT|PAGER|MANPAGER|BROWSER|LESSOPEN|LESSCLOSE|MAKEFLAGS|MAKEFILES|GCC_EXEC_PREFIX|COMPILER_PATH"
    # interpreters: options, modules and start-up files
    r"|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|NODE_.*|NPM_.*|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_.*|CLASSPATH"
    r"|R_(?:LIBS|PROFILE|ENVIRON|HOME|TESTS).*|JULIA_.*|LUA_.*|PHPRC|PHP_INI_SCAN_DIR|TCLLIBPATH|TCL_LIBRARY"
    r"|MATLABPATH|OCTAVE_.*|GUILE_.*"
    # network clients: programs they run, certificates they trust, hosts they connect to
    r"|GIT_.*|SSH_.*|SSL_CERT_.*|OPENSSL_.*|CURL_HOME|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|WGETRC|NETRC|RSYNC_.*"
    r"|KRB5.*|X509_.*",
    re.DOTALL,
)


def is_safe_variable(name: str) -> bool:
    """Return whether a pipeline may set the variable, with the user's consent where `needs_consent` requires it."""
    return _NAME.fullmatch(name) is not None and _REFUSED.fullmatch(name) is None


def needs_consent(names: Iterable[str]) -> list[str]:
    """Return the variables that change which programs run, what they load or where they connect."""
    return [name for name in names if _CONSENT.fullmatch(name)]


__all__ = [
    "CommandLine",
    "ConfigurationFile",
    "ExpectedOutput",
    "build_command_line",
    "refuse_unrunnable",
    "render_script",
]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command to run: `script` is text for `shell` (`sh` or `bash`), started in the work folder with `environment`."""

    script: str
    shell: str
    environment: Mapping[str, str]
    outputs: tuple[ExpectedOutput, ...]
    configuration_files: tuple[ConfigurationFile, ...]


def build_command_line(
    pipeline: Pipeline,
    invocation: Invocation,
    *,
    paths: Paths | None = None,
    work_folder: str | None = None,
) -> CommandLine:
    """Build the command line, environment, configuration files and expected outputs.

    `paths` replaces File values by input id with the absolute paths the tool will see (a list for a list input);
    `work_folder` is the absolute path the tool will see as its working directory: needed only where the
    pipeline wants absolute output paths. Raises `UsageError` for a value that cannot be quoted where the author put it,
    an output outside the work folder, a condition that cannot be evaluated, and other shells; `RefusedError` for a
    variable that must not be set (S10).
    """
    refuse_unrunnable(pipeline)
    context = make_context(pipeline, invocation, paths, work_folder)
    script = render_script(pipeline, invocation, paths=paths, work_folder=work_folder)
    environment = _build_environment(context)
    if "\0" in script or any("\0" in value for value in environment.values()):
        raise UsageError(
            "nul-in-command", "the pipeline's command holds a NUL character", subject=pipeline.reference
        )
    return CommandLine(
        script=script,
        shell=read_shell(pipeline.shell),
        environment=environment,
        outputs=tuple(
            expect_output(context, each)
            for each in pipeline.outputs
            if not each.file_template and is_produced(context, each)
        ),
        configuration_files=tuple(
            write_configuration(context, each)
            for each in pipeline.outputs
            if each.file_template and is_produced(context, each)
        ),
    )


def refuse_unrunnable(pipeline: Pipeline) -> None:
    """Raise when no invocation of this pipeline can be run, because it needs something unsafe or unknown."""
    for output in pipeline.outputs:
        for condition, _ in output.conditions:
            if condition != DEFAULT:
                read_condition(condition, pipeline.ids)
    read_shell(pipeline.shell)
    for variable in pipeline.environment:
        _check_environment_name(variable.name)


def render_script(
    pipeline: Pipeline,
    invocation: Invocation,
    *,
    paths: Paths | None = None,
    work_folder: str | None = None,
) -> str:
    """Return only the shell text; raises `UsageError` for a value that cannot be quoted where the author put it."""
    context = make_context(pipeline, invocation, paths, work_folder)
    script = ShellText(read_shell(pipeline.shell))
    pieces = list(split_template(pipeline.command_template, pipeline))
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            script.add_author_text(piece)
        else:
            following = pieces[number + 1] if number + 1 < len(pieces) else ""
            _add_key(script, context, piece, following[:1] if isinstance(following, str) else "")
    return str(script)


def _add_key(script: ShellText, context: TemplateContext, key: Key, following: str) -> None:
    owner = context.find_owner(key)
    if isinstance(owner, OutputFile) and is_produced(context, owner):
        script.add_author_text(owner.flag + owner.flag_separator if owner.flag else "")
        script.add_value(
            output_text(context, owner),
            owner.id,
            before=following,
            has_own_wildcards=not any(
                is_value and _WILDCARD.search(text)
                for text, is_value, _ in _fill_path(context, owner, frozenset())
            ),
        )
    elif isinstance(owner, Input) and _is_present(context, owner):
        _add_input(script, context, owner, following)
    else:
        script.drop_space()


def _is_present(context: TemplateContext, tool_input: Input) -> bool:
    input_value = context.values[tool_input.id]
    return input_value is not False and (input_value != [] or bool(tool_input.flag))


def _add_input(script: ShellText, context: TemplateContext, tool_input: Input, following: str) -> None:
    script.add_author_text(tool_input.flag)
    if tool_input.kind == "Flag":
        return
    script.add_author_text(tool_input.flag_separator if tool_input.flag else "")
    for number, item in enumerate(context.items(tool_input)):
        if number:
            script.add_separator(tool_input.list_separator, tool_input.id)
        script.add_value(item, tool_input.id, before=following)


def _build_environment(context: TemplateContext) -> dict[str, str]:
    """Return the variables by name. A variable whose value is only the key of an absent input is not set."""
    environment = {}
    for variable in context.pipeline.environment:
        pieces = list(
            fill_template(variable.value, context.pipeline, lambda key, _: plain_value(context, key))
        )
        if len(pieces) == 1 and not pieces[0][2]:
            continue
        environment[variable.name] = "".join(text for text, _, there in pieces if there)
    return environment


def _check_environment_name(name: str) -> None:
    if not is_safe_variable(name):
        raise RefusedError(
            "unsafe-environment-variable",
            "this pipeline sets a variable that changes how programs start, or whose name is invalid",
            subject=printable(name),
            hint="Ask the author of the pipeline to use another name.",
        )
