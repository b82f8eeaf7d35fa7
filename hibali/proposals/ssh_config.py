"""Sites that ~/.ssh/config has names for: the names are read from its lines, all else is what `ssh -G` says of them."""

from __future__ import annotations

import glob
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hibali import shell
from hibali.errors import HibaliError
from hibali.proposals.proposal import Found, Passed, Proposal, name_site
from hibali.text import printable

_DEEPEST = 16  # files that include each other, as ssh has it
_MOST_BYTES = 1 << 20
_MOST_NAMES = 300
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")
_WORD = re.compile(r'"([^"]*)"|([^\s"]+)')
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*")


@dataclass(slots=True)
class Lines:
    """What one file says: names and the lines they stand in (from 1), and the files that it includes."""

    names: list[tuple[str, int]] = field(default_factory=list)
    includes: list[tuple[str, int]] = field(default_factory=list)


def usual_file() -> Path:
    """Where ssh itself looks: in the home of the account, whatever HOME says."""
    return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh" / "config"


def read_lines(text: str) -> Lines:
    """The names of `Host` lines and the `Include` lines of a file (ssh_config(5)); pure.

    Patterns and negated names are left out; a `Match` names nothing.
    """
    found = Lines()
    for number, line in enumerate(text.splitlines(), start=1):
        parts = _LINE.fullmatch(line.partition("#")[0].rstrip())
        if parts is None:
            continue
        words = [quoted or plain for quoted, plain in _WORD.findall(parts[2])]
        match parts[1].lower():
            case "host":
                found.names += [(word, number) for word in words if not set(word) & set("*?!") and word]
            case "include":
                found.includes += [(word, number) for word in words]
    return found


def find_names(path: Path) -> list[tuple[str, str]]:
    """The names in a file and all that it includes, in their order, each with where it stands; nothing where it cannot be read."""
    seen: dict[str, str] = {}
    for name, origin in _names_below(path, path.parent, 0, set()):
        seen.setdefault(name, origin)
    return list(seen.items())[:_MOST_NAMES]


def _names_below(path: Path, home: Path, depth: int, read: set[Path]) -> Iterator[tuple[str, str]]:
    if path in read:
        return
    read.add(path)
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    lines = read_lines(text)
    for name, number in lines.names:
        yield name, f"{path}, line {number}"
    for word, _ in lines.includes if depth < _DEEPEST else ():
        for each in sorted(glob.glob(str(home / Path(word).expanduser()))):  # noqa: PTH207  # patterns may be absolute
            yield from _names_below(Path(each), home, depth + 1, read)


def propose(path: Path | None, taken: Sequence[str]) -> list[Found]:
    """A site for each name in ssh's configuration; `path` is another file than ssh's own. No host is asked."""
    file = path or usual_file()
    command = ["ssh"] if path is None else ["ssh", "-F", str(path.absolute())]
    found: list[Found] = []
    names = set(taken)
    for alias, origin in find_names(file):
        each = _propose(alias, origin, command, names)
        if isinstance(each, Proposal):
            names.add(each.name)
        found.append(each)
    return found


def _propose(alias: str, origin: str, command: Sequence[str], taken: set[str]) -> Found:
    if not _HOST.fullmatch(alias):
        return Passed(printable(alias), origin, "this cannot be the name of a host")
    try:
        told = shell.run([*command, "-G", "--", alias], timeout=15)
    except HibaliError as problem:
        return Passed(alias, origin, problem.message)
    if told.exit_code != 0:
        said = (
            printable(told.stderr.strip().splitlines()[-1]) if told.stderr.strip() else "ssh gave no reason"
        )
        return Passed(alias, origin, said)
    says = read_told(told.stdout.decode("utf-8", "replace"))
    if says.get("user") == "git":
        return Passed(alias, origin, "the account git is for git alone")
    ssh: dict[str, object] = {"host": alias}
    if list(command) != ["ssh"]:
        ssh["command"] = list(command)
    reached = printable(f"{says.get('user', '')}@{says.get('hostname', alias)}:{says.get('port', '22')}")
    through = says.get("proxyjump", "none")
    if through != "none":
        reached += printable(f" through {through}")
    return Proposal(name_site(alias, taken), {"kind": "ssh", "ssh": ssh}, origin, reached)


def read_told(text: str) -> dict[str, str]:
    """The last value of each setting in the answer of `ssh -G`; pure."""
    return {name: value for name, _, value in (line.partition(" ") for line in text.splitlines())}
