"""Sites that rclone has remotes for: s3, sftp and webdav; no password and no key is copied."""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.proposals.proposal import Found, Passed, Proposal, name_site
from hibali.settings_edit import check_site_table
from hibali.system_errors import reason_of
from hibali.text import printable

_MOST_BYTES = 1 << 20
_ENCRYPTED = "RCLONE_ENCRYPT_V0:"
_YES = frozenset({"true", "1", "t", "yes", "on"})

Remote = Mapping[str, str]
Made = tuple[dict[str, Any], str, list[str]]  # the table, how it is reached, what it lacks


def usual_file() -> Path:
    """Where rclone itself looks (rclone.org/docs, "--config")."""
    named = os.environ.get("RCLONE_CONFIG")
    if named:
        return Path(named).expanduser()
    home = Path.home()
    base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (base / "rclone" / "rclone.conf", home / ".config" / "rclone" / "rclone.conf")
    return next((path for path in places if path.exists()), home / ".rclone.conf")


def propose(path: Path, taken: Sequence[str]) -> list[Found]:
    """A site for each remote of a file. Raises `NotFoundError`, `UsageError` for what is encrypted or no such file."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1).decode("utf-8", "replace")
    except FileNotFoundError:
        raise NotFoundError("no-such-file", "rclone has no configuration there", about=str(path)) from None
    except OSError as problem:
        raise UsageError("unreadable-file", reason_of(problem), about=str(path)) from None
    if len(text) > _MOST_BYTES:
        raise UsageError("too-large", f"it is larger than {_MOST_BYTES} bytes", about=str(path))
    return propose_remotes(read_remotes(text, str(path)), str(path), taken)


def read_remotes(text: str, about: str) -> dict[str, dict[str, str]]:
    """The remotes of a rclone.conf and their keys; pure. Raises `UsageError`."""
    if _ENCRYPTED in text:
        raise UsageError(
            "encrypted-config",
            "this file is encrypted, and hibali asks for no password of it",
            about=about,
            hint="Write it in clear for a moment (rclone config show > FILE), set RCLONE_CONFIG=FILE, then: hibali sites import rclone",
        )
    parser = configparser.RawConfigParser(
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        strict=False,
        allow_no_value=True,
        default_section="\n",
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as rclone: case counts
    try:
        parser.read_string(text.replace("\0", "�"))
    except (configparser.Error, ValueError) as problem:
        reason = type(problem).__name__
        raise UsageError("unreadable-file", f"it is no rclone.conf ({reason})", about=about) from None
    return {name: {key: value or "" for key, value in parser.items(name)} for name in parser.sections()}


def propose_remotes(remotes: Mapping[str, Remote], about: str, taken: Sequence[str]) -> list[Found]:
    """A site for each remote of a kind that hibali has; pure."""
    found: list[Found] = []
    names = set(taken)
    for remote, values in remotes.items():
        origin = f"{about}, [{printable(remote)}]"
        make = _KINDS.get(values.get("type", ""))
        if make is None:
            kind = printable(values.get("type", "")) or "nothing"
            found.append(Passed(printable(remote), origin, f"hibali has no sites of rclone's type {kind}"))
            continue
        name = name_site(remote, names)
        try:
            table, reached, notes = make(name, values)
            check_site_table(name, table)
        except (HibaliError, ValueError) as problem:
            because = problem.message if isinstance(problem, HibaliError) else str(problem)
            found.append(Passed(printable(remote), origin, printable(because.replace("\n", ": "))))
            continue
        names.add(name)
        found.append(Proposal(name, table, origin, printable(reached), tuple(notes)))
    return found


def _make_s3(name: str, remote: Remote) -> Made:
    endpoint = remote.get("endpoint", "")
    if not endpoint and remote.get("provider", "AWS") not in {"AWS", ""}:
        raise ValueError("it names no endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    s3: dict[str, Any] = {"endpoint": endpoint or "aws"}
    if remote.get("region"):
        s3["region"] = remote["region"]
    notes = []
    if remote.get("access_key_id") or remote.get("secret_access_key"):
        s3["profile"] = remote.get("profile") or name
        notes.append(
            f"Its keys are not copied; give them once: aws configure --profile {shlex.quote(s3['profile'])}"
        )
    elif remote.get("profile"):
        s3["profile"] = remote["profile"]
    elif remote.get("env_auth", "").lower() not in _YES:
        s3["anonymous"] = True
    return {"kind": "s3", "s3": s3}, s3["endpoint"], notes


def _make_ssh(name: str, remote: Remote) -> Made:
    del name
    host, user, port = remote.get("host", ""), remote.get("user", ""), remote.get("port", "")
    if remote.get("ssh"):
        raise ValueError("it is reached by a command of its own; add it by hand")
    command = ["ssh"]
    if port and port != "22":
        if not port.isascii() or not port.isdigit():
            raise ValueError("its port is no number")
        command += ["-p", port]
    key = remote.get("key_file", "")
    if key:
        command += ["-i", key]
    reached = f"{user}@{host}" if user else host
    ssh: dict[str, Any] = {"host": reached}
    if command != ["ssh"]:
        ssh["command"] = command
    notes = []
    if remote.get("pass") or remote.get("key_file_pass"):
        notes.append(
            f"Its password is not copied: ssh asks for it, or give a key once: ssh-copy-id {shlex.quote(reached)}"
        )
    if remote.get("key_pem"):
        notes.append("Its key is not copied: put it into a file of its own, and add that to ssh-agent.")
    return {"kind": "ssh", "ssh": ssh}, reached, notes


def _make_webdav(name: str, remote: Remote) -> Made:
    parts = urlsplit(remote.get("url", ""))
    scheme = {"https": "davs", "http": "dav"}.get(parts.scheme)
    if scheme is None:
        raise ValueError("its url is none of https")
    if parts.username is not None or parts.password is not None:
        raise ValueError("its url holds a login")
    url = parts._replace(scheme=scheme).geturl()
    notes = []
    if remote.get("user") or remote.get("pass") or remote.get("bearer_token"):
        notes.append(
            "Its login is not copied; have a command print it: "
            f"hibali sites add {name} --url {shlex.quote(url)} --credentials-command COMMAND --replace"
        )
    return {"kind": "url", "url": url}, url, notes


_KINDS: dict[str, Callable[[str, Remote], Made]] = {"s3": _make_s3, "sftp": _make_ssh, "webdav": _make_webdav}
