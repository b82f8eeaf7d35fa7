"""Pilots: one job that runs many tasks of a sweep."""
