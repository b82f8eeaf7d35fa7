"""The agent as it is sent: one constant command, then its own source and a nonce on standard input."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

# Reads eight digits and then that many bytes, straight from descriptor 0 so that nothing behind them is swallowed.
# No newline, quote, `!` or `$`: it stands between single quotes in sh, bash, tcsh and fish alike.
BOOTSTRAP = (
    "import os,zlib;"
    'r=lambda n,d=b"":r(n,d+(os.read(0,n-len(d))or os._exit(9)))if len(d)<n else d;'
    "exec(zlib.decompress(r(int(r(8)))))"
)

# Finds the modules that were sent, and compiles each when it is first imported; the class of a specification (PEP 451)
# is taken from one that is there, because importing it costs more than what it is for.
_FINDER = """
import sys
class Sent:
    def __init__(self, texts):
        self.texts = texts
    def find_spec(self, name, path=None, target=None):
        text = self.texts.get(name)
        return None if text is None else type(sys.__spec__)(name, self, is_package=not text)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(self.texts[module.__name__], "hibali:" + module.__name__, "exec"), module.__dict__)
"""

# Behind the standard library, which is not to be hidden by what stands beside us.
_HERE = "import sys\nsys.path.append({!a})\n"
_ROOT = Path(__file__).resolve().parents[1]

# Nobody reads them over there, and they are a quarter of what is sent.
_DOCSTRING = re.compile(r'^( *)"""(?:[^"\\]|"(?!"")|\\.)*"""$', re.MULTILINE)
_COMMENT = re.compile(r"^ *#.*$", re.MULTILINE)


def remote_command(python: str) -> str:
    """The command line for a login shell at a site."""
    return f"exec {python} -I -S -c '{BOOTSTRAP}'"


def local_command(python: str) -> list[str]:
    """The same for this machine, in words."""
    return [python, "-I", "-S", "-c", BOOTSTRAP]


def opening(nonce: str, roots: Sequence[str] = (), *, here: bool = False) -> bytes:
    """What is written to the agent's standard input before the first frame; `here` it loads the modules we run from.

    `roots` are the site's, as `transfers.agent.serve.main` has them.
    """
    call = f"transfers.agent.serve.main({nonce!r}, {tuple(roots)!a})"
    source = _HERE.format(str(_ROOT)).encode("ascii") if here else _source()
    packed = zlib.compress(source + f"import transfers.agent.serve\n{call}\n".encode("ascii"), 9)
    return b"%08d" % len(packed) + packed


@functools.cache
def _source() -> bytes:
    texts = {"transfers": "", "transfers.agent": ""}
    for file in sorted(Path(__file__).with_name("agent").glob("[a-z]*.py")):
        texts[f"transfers.agent.{file.stem}"] = _without_comments(file.read_text("utf-8"))
    return f"{_FINDER}\nsys.meta_path.insert(0, Sent({texts!a}))\n".encode("ascii")


def _without_comments(text: str) -> str:
    """The same statements on the same lines, so that what fails there is found here."""
    return _COMMENT.sub("", _DOCSTRING.sub(_empty_string, text))


def _empty_string(found: re.Match[str]) -> str:
    return found.group(1) + '""' + "\n" * found.group(0).count("\n")
