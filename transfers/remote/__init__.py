"""Run commands and handle files on the host of a site."""
