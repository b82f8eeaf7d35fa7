"""Lay out help texts: options in sections, examples, and the topics of `hibali help`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

EXIT_STATUS: Final[Mapping[int, str]] = {
    0: "Done.",
    1: "A bug in hibali.",
    2: "Usage or configuration is wrong.",
    3: "Something named on the command line was not found.",
    4: "Access: login, permission, expired credential, second factor or unknown host key.",
    5: "Try again later: unreachable, locked, throttled, --max-time elapsed, or a lost run.",
    6: "Incomplete: not everything was done or verified.",
    7: "The run failed or was cancelled.",
    8: "Refused; nothing was changed at the target.",
    9: "The tool of the run exited with 0, but a required output is missing.",
    10: "There are changes (only with --detailed-exit-code).",
    11: "Not verified: no difference was found, but some files could not be compared.",
    130: "Interrupted from the keyboard.",
    143: "Terminated.",
}
FILES: Final[Mapping[str, str]] = {
    "~/.config/hibali/config.toml": "The configuration. Refused when others can write it.",
    "~/.local/state/hibali/": "The ledger, caches and bug reports; private to the account.",
}
ENVIRONMENT: Final[Mapping[str, str]] = {
    "HIBALI_CONFIG": "The configuration to read instead of the user's, unless --config is given.",
    "HIBALI_SITE": "The default site, instead of `default_site` in the configuration.",
    "HIBALI_STATE": "The state folder, instead of the user's.",
    "XDG_RUNTIME_DIR": "The folder of ssh control sockets, if its path is short; else the temporary folder.",
    "NO_COLOR": "When set, output has no colours.",
}
_LOCATIONS: Final[Mapping[str, str]] = {
    "data/run7": "A path of this machine.",
    "./a:b": "The same, where a colon comes before the first slash.",
    "SITE:": "The default root of a site, else the home folder there; for all sites: hibali sites list",
    "SITE:data/run7": "A path below it.",
    ":data/run7": "The same at the default site: hibali config set default-site SITE",
    "SITE:@ROOT/data": "A path below a named root; for those of a site: hibali sites show SITE",
    "SITE:/data/run7": "An absolute path.",
    "BUCKET_SITE:raw/a": "The key raw/a in the bucket of an object store.",
}
# The topics of `hibali help`: a sentence, and terms with their meanings.
TOPICS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "exit-codes": (
        "Exit codes, on which scripts can rely.",
        {str(code): meaning for code, meaning in EXIT_STATUS.items()},
    ),
    "locations": ("Locations, as commands take them.", _LOCATIONS),
    "environment": ("Files and environment variables that hibali reads.", {**FILES, **ENVIRONMENT}),
}
_COMMON = "Common options"
_COMMON_FIRST = frozenset({"json", "quiet", "verbose", "max_time", "help", "help_all"})
FIRST_EXAMPLES = 4  # in the help of a command with a layout, without --help-all
_WIDEST = 30  # columns of the names of options, as click has them
EVERY_OPTION = "hibali.every-option"  # the key in the context's `meta` that --help-all sets


class HelpLayout(NamedTuple):
    """The order of the help of a command with many options.

    Attributes:
        sections: The title of each section, by the name of its first parameter.
        first: The names of the options that are shown without --help-all.
    """

    sections: Mapping[str, str]
    first: frozenset[str]

    def with_section(self, first: str, title: str) -> HelpLayout:
        """Return it with another section, by the name of its first parameter."""
        return self._replace(sections={**self.sections, first: title})


def write_sections(context: click.Context, layout: HelpLayout, formatter: click.HelpFormatter) -> None:
    """Write the options by section; without --help-all only the first ones, and what else there is."""
    sections = {**layout.sections, "json": _COMMON}
    every = EVERY_OPTION in context.meta
    shown: dict[str, list[tuple[str, str]]] = {}
    title = "Options"
    left_out: list[str] = []
    for each in context.command.get_params(context):
        title = sections.get(str(each.name), title)
        record = each.get_help_record(context) if isinstance(each, click.Option) else None
        if record is None:
            continue
        if every or each.name in layout.first | _COMMON_FIRST:
            shown.setdefault(title, []).append(record)
        else:
            left_out.append(title)
    names = (len(name) for rows in shown.values() for name, _ in rows)
    width = max((length for length in names if length <= _WIDEST), default=0)
    for title, rows in shown.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), meaning) for name, meaning in rows])
    if left_out:
        titles = "; ".join(dict.fromkeys(left_out))
        formatter.write_paragraph()
        formatter.write_text(f"More options ({titles}): {context.command_path} --help-all")


def write_examples(examples: Sequence[tuple[str, str]], formatter: click.HelpFormatter) -> None:
    """Write the section EXAMPLES of a help text."""
    if examples:
        with formatter.section("Examples"):
            for line, meaning in examples:
                formatter.write_text(meaning)
                formatter.write(f"{'':>{formatter.current_indent + 2}}{line}\n")


def write_topics_hint(formatter: click.HelpFormatter) -> None:
    """Write where exit codes are explained."""
    formatter.write_paragraph()
    formatter.write_text("Exit codes: hibali help exit-codes")


def topic_text(name: str, context: click.Context) -> str:
    """Return the text of a topic of `hibali help`."""
    sentence, terms = TOPICS[name]
    formatter = context.make_formatter()
    formatter.write_text(sentence)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_dl(list(terms.items()))
    return formatter.getvalue()
