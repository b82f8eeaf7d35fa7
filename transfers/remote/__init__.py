"""Run commands and handle files at a site that has a machine."""
