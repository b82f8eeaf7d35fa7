"""Follow a source while it is written."""
