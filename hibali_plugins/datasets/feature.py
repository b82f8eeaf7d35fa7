"""Offer what the core asks of datasets (transfers.stores.open_views.Datasets)."""

from hibali_plugins.datasets.contents import fetch_contents, open_contents
from hibali_plugins.datasets.view import dataset_view

__all__ = ["dataset_view", "fetch_contents", "open_contents"]
