"""Stripe new folders on Lustre over several storage targets, where the configuration asks for it (lfs-setstripe(1))."""

from __future__ import annotations

from contextlib import closing

from hibali.errors import HibaliError
from hibali.events import Listener, Noted
from hibali.locations import Location
from hibali.text import counted, printable
from transfers.model.store import Store
from transfers.stores.open_store import open_host


def stripe_count(location: Location) -> str | None:
    """Return over how many storage targets new folders of a location are striped; None if the site decides."""
    site, best, path = location.site, "", location.path + "/"
    for name in site.stripe:
        if path.startswith(site.roots[name].rstrip("/") + "/") and len(site.roots[name]) >= len(
            site.roots.get(best, "")
        ):
            best = name
    return site.stripe.get(best)


def stripe_new_folder(location: Location, store: Store, on_event: Listener) -> None:
    """Stripe the folder that was just created for a transfer; what is created in it inherits that.

    A folder that existed is left as it is. If it is not on Lustre or `lfs` fails, that is noted, and the
    transfer goes on: the data is the same.
    """
    count = stripe_count(location)
    if count is None or not store.can(Store.identify):
        return
    try:
        with closing(open_host(location.site, on_event=on_event)) as host:
            done = host.run(["lfs", "setstripe", "-c", count, store.root_path])
    except HibaliError as problem:
        on_event(Noted(f"{location.text} is not striped: {problem.message}"))
        return
    if done.exit_code != 0:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        on_event(
            Noted(f"{location.text} is not striped: {printable(said) or f'lfs ended with {done.exit_code}'}")
        )
        return
    over = "all storage targets" if count == "-1" else counted(int(count), "storage target")
    on_event(Noted(f"{location.text} is striped over {over}"))
