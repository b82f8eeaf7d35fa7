"""Set up the notices and metrics of schedules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hibali.amounts import split_command
from hibali.errors import IncompleteError, UsageError
from hibali.http.fetch import check_post_url
from hibali_cli.failure import print_error
from hibali_cli.options import Common
from hibali_plugins.schedules.maintenance import all_credentials, current_metrics, write_metrics
from hibali_plugins.schedules.notices import Notice, send_notice
from hibali_plugins.schedules.schedule import Notices, load_schedules, put_metrics_file, put_notices


def write_metrics_file(common: Common, *, file: str | None, off: bool) -> int | None:
    """Show the metrics of schedules, or write them to a file."""
    known = load_schedules(common.config)
    if off:
        put_metrics_file(common.config, "")
        common.output.info("Metrics are no longer written.")
        return None
    credentials = all_credentials(common.config, known)
    if file is None:
        text = current_metrics(known, credentials)
        if common.json:
            common.output.record("metrics", {"file": known.metrics_file or None, "text": text})
        else:
            common.output.text(text)
        return None
    path = Path(file).expanduser().absolute()
    write_metrics(path, known, credentials)
    put_metrics_file(common.config, str(path))
    if common.json:
        common.output.record("metrics", {"file": str(path), "text": path.read_text("utf-8")})
    common.output.info(f"The metrics are in {path}, and are updated after each run.")
    return None


def set_up_notices(common: Common, *, off: bool, test: bool, **options: Any) -> int | None:
    """Set up notices, and show the setup."""
    given = {key: value for key, value in options.items() if value is not None}
    notices = load_schedules(common.config).notices
    if off:
        notices = Notices(expires_within_days=notices.expires_within_days)
    if given:
        notices = replace(notices, **_read(given))
        if (notices.secret_file or notices.secret_command) and not notices.webhook:
            raise UsageError("usage", "a secret needs a webhook: add --webhook", subject="--secret-file")
    if given or off:
        path = put_notices(common.config, notices)
        common.output.info(f"Saved in {path}.")
    if test:
        if not notices.has_receiver:
            raise UsageError(
                "usage", "no notices are configured: add --command, --mail or --webhook", subject="--test"
            )
        problems = send_notice(notices, Notice("trial", "trial", "trial", "this is a test notice of hibali"))
        for problem in problems:
            print_error(problem)
        if problems:
            raise IncompleteError(
                "not-notified", "some notices could not be sent; see above", subject="hibali schedule notify"
            )
        common.output.info("A test notice was sent.")
    if common.json:
        common.output.record(
            "notices", {**_shown(notices), "expires_within_days": notices.expires_within_days}
        )
    else:
        common.output.pairs({key: value or None for key, value in _shown(notices).items()})
    if not notices.has_receiver:
        common.output.info("Nobody is notified. To change that: hibali schedule notify --mail ADDRESS")
    return None


def _read(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in {"words", "secret_command"}:
            try:
                found["command" if key == "words" else key] = split_command(value)
            except ValueError as problem:
                raise UsageError("bad-command", str(problem), subject=f"--{key}") from None
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
    """Return the configured notices without possible secrets: the path of a webhook often is one."""
    webhook = notices.webhook
    if webhook and "{secret}" not in webhook:
        scheme, _, rest = webhook.partition("://")
        webhook = f"{scheme}://{rest.partition('/')[0]}/..."
    return {
        "command": notices.command[0] if notices.command else "",
        "mail": notices.mail,
        "webhook": webhook,
    }
