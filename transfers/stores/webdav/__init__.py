"""Folders behind WebDAV servers."""
