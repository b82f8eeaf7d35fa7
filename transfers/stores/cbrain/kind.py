"""Declare, open and check sites that are CBRAIN portals.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from hibali.config.kinds import StoreKind
from transfers.stores.cbrain.settings import CbrainSettings

KIND = StoreKind(
    settings=CbrainSettings, has_keys=True, service="cbrain", address=lambda site: str(site.own.url)
)
