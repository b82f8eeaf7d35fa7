"""The table of a site that says where its proxies for GSI come from; what is wrong is noted, not raised."""

from __future__ import annotations

from hibali.settings_table import Table
from hibali.settings_values import read_duration
from hibali.sites import ProxySettings

_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"
_FILE = r"(/|~/).+"
_FILE_MEANING = "an absolute path or ~/x"
_WORD = r"[^\s-]\S*"
_FROM_KEY, _FROM_SERVER = ("certificate", "key"), ("server", "port", "account", "credential")
_PASSPHRASES = ("passphrase_command", "passphrase_file", "passphrase_variable")
SHORTEST, LONGEST = 60.0, 30 * 86400.0  # the tools count in minutes, and take none at all for ten years


def read_proxy(table: Table | None) -> ProxySettings | None:
    """What the site says of its proxies, where it says anything."""
    if table is None:
        return None
    found = ProxySettings(
        make=table.choice("make", ("no", "grid-proxy-init", "myproxy"), "no"),
        certificate=table.text("certificate", _FILE, _FILE_MEANING),
        key=table.text("key", _FILE, _FILE_MEANING),
        server=table.text("server", _HOST, "a host"),
        port=table.whole("port", 7512, most=65535),
        account=table.text("account", _WORD, "an account"),
        credential=table.text("credential", _WORD, "a credential's name"),
        passphrase_command=table.words("passphrase_command", ()),
        passphrase_file=table.text("passphrase_file", _FILE, _FILE_MEANING),
        passphrase_variable=table.text("passphrase_variable", r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name"),
        least_seconds=_read_seconds(table, "least", 600.0),
        life_seconds=_read_seconds(table, "life", 3600.0),
        queue_seconds=table.quantity("queue", read_duration, 86400.0),
        jobs=table.flag("jobs"),
    )
    _check_source(table, found)
    table.finish()
    return found


def _read_seconds(table: Table, key: str, default: float) -> float:
    seconds = table.quantity(key, read_duration, default)
    if not SHORTEST <= seconds <= LONGEST:
        table.note("must be from 1m to 30d", key)
        return default
    return seconds


def _check_source(table: Table, found: ProxySettings) -> None:
    """Keys that say nothing in the way a proxy is made are mistakes."""
    said = [key for key in _PASSPHRASES if table.has(key)]
    if len(said) > 1:
        table.note(f"only one of {', '.join(_PASSPHRASES)} can be set")
    if found.make == "no" and said:
        table.note('is for a proxy that hibali makes: set make = "grid-proxy-init" or "myproxy"', said[0])
    foreign = {"myproxy": _FROM_KEY, "grid-proxy-init": _FROM_SERVER, "no": ()}[found.make]
    for key in foreign:
        if table.has(key):
            table.note(f"does not go with make = {found.make!r}", key)
    if found.make == "myproxy":
        for key in ("server", "account"):
            if not table.has(key):
                table.note(f'make = "myproxy" needs {key}')
        if not said:
            table.note(f'make = "myproxy" needs one of {", ".join(_PASSPHRASES)}')
