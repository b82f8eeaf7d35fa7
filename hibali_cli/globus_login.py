"""What a person sees of a login to Globus: a URL to open anywhere, and a prompt for the code that is shown there."""

from __future__ import annotations

from hibali.config.model import Site
from hibali.errors import AccessError
from hibali.subprocesses import has_terminal
from hibali_cli.options import Common
from hibali_cli.output import write_aside
from hibali_cli.terminal_lines import read_line, terminal_as_stdout

_SAID = {
    "logged in": "Logged in to Globus for {name}.",
    "same": "{name}: logged in to Globus already.",
    "client": "{name}: Globus takes the client of config.toml; nobody has to log in.",
}


def log_in_and_tell(common: Common, site: Site) -> None:
    """Log in, asking on the terminal where that is needed, and say what the collection answers."""
    from transfers.stores.globus.login import log_in

    def ask(url: str, why: str) -> str:
        return _ask_for_code(site, url, why)

    found = log_in(site, ask)
    if common.json:
        common.output.record("site-login", {"name": site.name, "change": found.change, "facts": found.facts})
    else:
        common.output.pairs({"site": site.name, **found.facts})
    common.output.say(_SAID[found.change].format(name=site.name))


def log_out_and_tell(common: Common, site: Site) -> None:
    """Log out, and say so."""
    from transfers.stores.globus.login import log_out

    found = log_out(site)
    change = "logged out" if found.change == "logged out" else "same"
    if common.json:
        common.output.record("site-login", {"name": site.name, "change": change, "facts": {}})
    common.output.say(
        f"Logged out of Globus; every site with the client of {site.name} is."
        if change == "logged out"
        else f"{site.name}: nobody was logged in to Globus."
    )


def _ask_for_code(site: Site, url: str, why: str) -> str:
    if not has_terminal():
        raise AccessError(
            "login-needed",
            "Globus asks for a person, and nobody can be asked: stdin and stderr are no terminal",
            about=site.name,
            hint=f"On a terminal: hibali sites login {site.name}",
        )
    write_aside(f"{why}: open this in a browser, on any machine, and type the code that it shows.\n\n{url}\n")
    with terminal_as_stdout():
        return read_line("Code: ", lambda _: [])
