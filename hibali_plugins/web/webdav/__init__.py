"""Stores for folders at WebDAV servers."""
