"""`hibali schedule notify`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hibali.errors import IncompleteError, UsageError
from hibali_cli.command import command as as_command
from hibali_cli.failure import tell_people
from hibali_cli.options import Common

_EXAMPLES = [
    (
        "hibali schedule notify --mail me@example.org --test",
        "Have trouble told by mail, and see that it arrives.",
    ),
    (
        "hibali schedule notify --webhook https://chat.example.org/hooks/{secret} --secret-file ~/.hook",
        "Have it told in a chat; what is in the file takes the place of {secret}.",
    ),
    (
        "hibali schedule notify --command 'tee -a notices.jsonl'",
        "Have it told to a command, as JSON on its standard input.",
    ),
]


@as_command("notify", examples=_EXAMPLES)
@click.option(
    "--command", "words", metavar="WORDS", help="Run this with the notice as JSON on its standard input."
)
@click.option("--mail", metavar="ADDRESS", help="Send it there, by this machine's sendmail.")
@click.option("--webhook", metavar="URL", help="POST it there as JSON.")
@click.option(
    "--secret-file",
    metavar="FILE",
    help="The webhook's secret: for {secret} in the URL, else a bearer token.",
)
@click.option("--secret-command", metavar="WORDS", help="A command that prints that secret.")
@click.option(
    "--expires-within",
    type=click.IntRange(0, 365),
    metavar="DAYS",
    help="Tell so long before a credential expires; 7.",
)
@click.option("--off", is_flag=True, help="Tell nobody any more.")
@click.option("--test", is_flag=True, help="Give a notice of trial, now.")
def command(common: Common, **options: Any) -> int | None:
    """Say who is told of trouble with schedules, and see who is.

    Told is a failure, the first success after it, that nothing has run for too long, and a credential that will
    expire; the same trouble once a day for each schedule.
    """
    from runs.schedules.notices import Notice, give_notice
    from runs.schedules.schedule import Notices, load_schedules, put_notices

    off, test = options.pop("off"), options.pop("test")
    given = {key: value for key, value in options.items() if value is not None}
    notices = load_schedules(common.config).notices
    if off:
        notices = Notices(expires_within_days=notices.expires_within_days)
    if given:
        notices = replace(notices, **_read(given))
        if (notices.secret_file or notices.secret_command) and not notices.webhook:
            raise UsageError("usage", "a secret is for a webhook: give --webhook, too", about="--secret-file")
    if given or off:
        path = put_notices(common.config, notices)
        common.output.say(f"Kept in {path}.")
    if test:
        if not notices.anybody:
            raise UsageError("usage", "nobody is told: give --command, --mail or --webhook", about="--test")
        problems = give_notice(
            notices, Notice("trial", "trial", "trial", "this is a trial: notices arrive here")
        )
        for problem in problems:
            tell_people(problem)
        if problems:
            raise IncompleteError(
                "not-notified", "not everybody could be told", about="hibali schedule notify"
            )
    if common.json:
        common.output.record(
            "notices", {**_shown(notices), "expires_within_days": notices.expires_within_days}
        )
    else:
        common.output.pairs({key: value or None for key, value in _shown(notices).items()})
    return None


def _read(given: dict[str, Any]) -> dict[str, Any]:
    from hibali.amounts import read_words
    from hibali.http import check_post_url

    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in {"words", "secret_command"}:
            try:
                found["command" if key == "words" else key] = read_words(value)
            except ValueError as problem:
                raise UsageError("bad-command", str(problem), about=f"--{key}") from None
        elif key == "expires_within":
            found["expires_within_days"] = value
        elif key == "secret_file":
            found[key] = str(Path(value).expanduser().absolute())
        else:
            found[key] = value
    if "webhook" in found:
        check_post_url(found["webhook"])
    return found


def _shown(notices: Any) -> dict[str, str]:
    """Who is told, without what may be a secret: a webhook's path often is one."""
    webhook = notices.webhook
    if webhook and "{secret}" not in webhook:
        scheme, _, rest = webhook.partition("://")
        webhook = f"{scheme}://{rest.partition('/')[0]}/..."
    return {
        "command": notices.command[0] if notices.command else "",
        "mail": notices.mail,
        "webhook": webhook,
    }
