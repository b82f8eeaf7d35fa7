"""Drafts of datasets in OpenNeuro as targets: contents to its annex, then one git commit."""
