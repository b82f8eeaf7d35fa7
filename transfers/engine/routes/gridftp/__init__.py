"""Transfers of large files over GridFTP."""
