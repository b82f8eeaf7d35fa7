"""The agent as it is sent: one constant command, then its own source and a nonce on standard input."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

# Reads eight digits and then that many bytes, straight from descriptor 0 so that nothing behind them is swallowed.
# No newline, quote, `!` or `$`: it stands between single quotes in sh, bash, tcsh and fish alike.
BOOTSTRAP = (
    "import os,zlib;"
    'r=lambda n,d=b"":r(n,d+(os.read(0,n-len(d))or os._exit(9)))if len(d)<n else d;'
    "exec(zlib.decompress(r(int(r(8)))))"
)

_LOADER = """
import sys, types
def _load(modules):
    for name, text in modules:
        module = types.ModuleType(name)
        if text is None:
            module.__path__ = []
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
        if text is not None:
            exec(compile(text, "hibali:" + name, "exec"), module.__dict__)
"""

# Behind the standard library, which is not to be hidden by what stands beside us.
_HERE = "import sys\nsys.path.append({!a})\nimport transfers.agent.serve\n"
_ROOT = Path(__file__).resolve().parents[1]

# In the order in which they import one another.
_MODULES = (
    "frames",
    "zeros",
    "buffers",
    "records",
    "own_names",
    "problems",
    "beneath",
    "attributes",
    "folding",
    "journal",
    "names",
    "lease",
    "walk",
    "sync",
    "removing",
    "adjusting",
    "keeping",
    "begun",
    "vacating",
    "frontier",
    "expected",
    "sparse",
    "landing",
    "large",
    "channel",
    "quota",
    "reading",
    "intake",
    "growing",
    "commands",
    "session",
    "serve",
)


def remote_command(python: str) -> str:
    """The command line for a login shell at a site."""
    return f"exec {python} -I -S -c '{BOOTSTRAP}'"


def local_command(python: str) -> list[str]:
    """The same for this machine, in words."""
    return [python, "-I", "-S", "-c", BOOTSTRAP]


def opening(nonce: str, *, here: bool = False) -> bytes:
    """What is written to the agent's standard input before the first frame; `here` it loads the modules we run from."""
    source = _HERE.format(str(_ROOT)).encode("ascii") if here else _source()
    packed = zlib.compress(
        source + f"\nsys.modules['transfers.agent.serve'].main({nonce!r})\n".encode("ascii"), 9
    )
    return b"%08d" % len(packed) + packed


@functools.cache
def _source() -> bytes:
    folder = Path(__file__).with_name("agent")
    modules: list[tuple[str, str | None]] = [("transfers", None), ("transfers.agent", None)]
    modules += [(f"transfers.agent.{name}", (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES]
    return f"{_LOADER}\n_load({modules!a})\n".encode("ascii")
