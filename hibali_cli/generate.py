"""`python -m hibali_cli.generate [--check | --pages FOLDER]`: completions/, man/ and the documentation's pages, from the commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import FishComplete, ShellComplete

from hibali_cli.manual import manual_page, page_name
from hibali_cli.output import write_aside
from hibali_cli.reference import reference_index, reference_page
from hibali_cli.root import root
from hibali_cli.shells import Bash, Zsh

_SHELLS: dict[str, type[ShellComplete]] = {
    "hibali.bash": Bash,
    "_hibali": Zsh,
    "hibali.fish": FishComplete,
}


def generated_files() -> dict[str, str]:
    """Every file's path in the clone and its text; the same whenever and wherever it is made."""
    files = {f"completions/{name}": _completion(shell) for name, shell in _SHELLS.items()}
    for context in contexts_of(click.Context(root, info_name="hibali")):
        files[f"man/{page_name(context)}.1"] = manual_page(context)
    return files


def contexts_of(context: click.Context) -> Iterator[click.Context]:
    """The context of a command and of every command below it."""
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for word in group.list_commands(context):
            command = group.get_command(context, word)
            if command is not None:
                yield from contexts_of(click.Context(command, parent=context, info_name=word))


def stale_files(clone: Path) -> list[str]:
    """The files that are missing, differ, or belong to no command any more."""
    files = generated_files()
    there = {
        str(path.relative_to(clone))
        for folder in ("completions", "man")
        for path in (clone / folder).glob("*")
    }
    differ = [name for name, text in files.items() if not _holds(clone / name, text)]
    return sorted({*differ, *(there - files.keys())})


def write_files(clone: Path) -> None:
    """Make them what they should be."""
    files = generated_files()
    for name in stale_files(clone):
        path = clone / name
        path.parent.mkdir(exist_ok=True)
        if name in files:
            path.write_text(files[name], encoding="ascii")
        else:
            path.unlink()


def write_pages(folder: Path) -> None:
    """Write the documentation's page of every command, and the one that leads to them, into a new folder."""
    folder.mkdir(parents=True)
    contexts = list(contexts_of(click.Context(root, info_name="hibali")))
    (folder / "index.md").write_text(reference_index(contexts), encoding="utf-8")
    for context in contexts:
        (folder / f"{page_name(context)}.md").write_text(reference_page(context), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write, or with `--check` only name what is stale and end with 1."""
    clone = Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--pages"]:
        write_pages(Path(arguments[1]))
        return 0
    if arguments != ["--check"]:
        write_files(clone)
        return 0
    stale = stale_files(clone)
    for name in stale:
        write_aside(f"stale: {name} (make it new: python -m hibali_cli.generate)")
    return 1 if stale else 0


def _completion(shell: type[ShellComplete]) -> str:
    made = shell(root, {}, "hibali", "_HIBALI_COMPLETE")
    return (made.source_template % made.source_vars()).strip() + "\n"


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode("ascii")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
