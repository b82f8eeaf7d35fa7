"""Generate completions, man pages, pictures and documentation pages from the commands: `python -m docs.tools.generate [--check | --pages FOLDER]`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click
from click.shell_completion import FishComplete, ShellComplete

from docs.tools.api_page import python_page
from docs.tools.man_pages import manual_page, page_name
from docs.tools.pictures import pictures
from hibali.config.kinds import every_kind
from hibali.config.model import Site
from hibali.config.schema import Key, keys_of_field
from hibali.config.settings import Document, default_text, tables_of
from hibali_cli.completion import Bash, Zsh
from hibali_cli.output import write_message
from hibali_cli.root import root

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def reference_page(context: click.Context) -> str:
    """Return the page of the command of `context`."""
    return "\n".join(_lines(context)) + "\n"


def reference_index(contexts: list[click.Context]) -> str:
    """Return the index page: a table of all commands, and the order of the pages."""
    rows = (
        f"| [`{context.command_path}`]({page_name(context)}.md) | {_escape(_sentence(context.command))} |"
        for context in contexts
    )
    names = (page_name(context) for context in contexts)
    head = ["# Commands", "", "| command | what it does |", "|---|---|"]
    return "\n".join(
        [
            *head,
            *rows,
            "",
            "```{toctree}",
            ":hidden:",
            "",
            *names,
            "settings",
            "python-api",
            "transcript",
            "```",
            "",
        ]
    )


def settings_page() -> str:
    """Return the page of all tables of config.toml and their keys, as declared."""
    lines = ["# All settings of config.toml", ""]
    for path, declared in tables_of(Document):
        head = f"`[{path}]`" if path else "At the top"
        lines += [f"## {head}", "", "| key | default | meaning |", "|---|---|---|"]
        for each in fields(declared):
            for name, key in keys_of_field(each).items():
                lines.append(f"| `{name}` | {_shown_default(each, key)} | {_escape(key.doc)} |")
        lines.append("")
        if declared is Site:
            lines += ["Which keys a site has depends on its kind, beside `kind` and `limits`:", ""]
            lines += [
                f"- `{name}`: {', '.join(f'`{key}`' for key in kind.keys)}"
                for name, kind in every_kind().items()
                if kind.keys
            ]
            lines.append("")
    return "\n".join(lines)


def _shown_default(each: Field[Any], key: Key) -> str:
    text = default_text(each, key)
    return f"`{text}`" if text and not key.required else text


def _lines(context: click.Context) -> Iterator[str]:
    command = context.command
    yield from (f"# {context.command_path}", "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from ("```text", usage, "```", "")
    yield from _paragraphs(command.help or "")
    yield from _commands(context)
    yield from ("## Options", "")
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            yield from _item(f"`{record[0]}`", record[1])
    yield from ("[Exit codes](../exit-codes.md)", "")
    yield from _examples(context)


def _commands(context: click.Context) -> Iterator[str]:
    command = context.command
    if isinstance(command, click.Group):
        yield from ("## Commands", "")
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _item(f"[`{name}`]({page_name(context)}-{name}.md)", _sentence(found))


def _examples(context: click.Context) -> Iterator[str]:
    examples = getattr(context.command, "examples", ())
    if examples:
        yield from ("## Examples", "")
        for line, meaning in examples:
            yield from (_escape(meaning), "", "```text", line, "```", "")


def _item(term: str, meaning: str) -> Iterator[str]:
    yield from (term, f": {_escape(meaning)}", "")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.replace("\b\n", "").strip().split("\n\n"):
        yield from (_escape(" ".join(paragraph.split())), "")


def _sentence(command: click.Command) -> str:
    """Return the first paragraph of the help."""
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def _escape(text: str) -> str:
    """Escape text for Markdown."""
    return _SPECIAL.sub(r"\\\1", text)


_SHELLS: dict[str, type[ShellComplete]] = {
    "hibali.bash": Bash,
    "_hibali": Zsh,
    "hibali.fish": FishComplete,
}


def generated_files() -> dict[str, str]:
    """Return the path in the clone and the text of every generated file; reproducible."""
    files = {f"completions/{name}": _completion(shell) for name, shell in _SHELLS.items()}
    for context in contexts_of(click.Context(root, info_name="hibali")):
        files[f"man/{page_name(context)}.1"] = manual_page(context)
    return files | {f"docs/pictures/{name}": text for name, text in pictures().items()}


def contexts_of(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and of every command below it."""
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None:
                yield from contexts_of(click.Context(command, parent=context, info_name=name))


def stale_files(clone: Path) -> list[str]:
    """Return the files that are missing, differ, or belong to no command any more."""
    files = generated_files()
    there = {
        str(path.relative_to(clone))
        for folder in ("completions", "man")
        for path in (clone / folder).glob("*")
    }
    differ = [name for name, text in files.items() if not _holds(clone / name, text)]
    return sorted({*differ, *(there - files.keys())})


def write_files(clone: Path) -> None:
    """Write all generated files, and remove stale ones."""
    files = generated_files()
    for name in stale_files(clone):
        path = clone / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if name in files:
            path.write_text(files[name], encoding="ascii")
        else:
            path.unlink()


def write_pages(folder: Path) -> None:
    """Write the documentation page of every command and the index into a new folder."""
    folder.mkdir(parents=True)
    contexts = list(contexts_of(click.Context(root, info_name="hibali")))
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "python-api.md").write_text(python_page(), encoding="utf-8")
    (folder / "index.md").write_text(reference_index(contexts), encoding="utf-8")
    for context in contexts:
        (folder / f"{page_name(context)}.md").write_text(reference_page(context), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write the files; with `--check` only name stale files and return 1."""
    clone = Path(__file__).resolve().parents[2]
    if arguments[:1] == ["--pages"]:
        write_pages(Path(arguments[1]))
        return 0
    if arguments != ["--check"]:
        write_files(clone)
        return 0
    stale = stale_files(clone)
    for name in stale:
        write_message(f"stale: {name} (to renew it: python -m docs.tools.generate)")
    return 1 if stale else 0


def _completion(shell: type[ShellComplete]) -> str:
    made = shell(root, {}, "hibali", "_HIBALI_COMPLETE")
    return (made.source_template % made.source_vars()).strip() + "\n"


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode("ascii")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
