"""Modules that all other packages share."""

__version__ = "0.1.0"
