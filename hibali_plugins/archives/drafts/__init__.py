"""Drafts of Zenodo, into which files are pushed; nothing here publishes one."""
