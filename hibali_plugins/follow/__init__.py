"""Follow a source while it is written: `hibali push --follow`."""
