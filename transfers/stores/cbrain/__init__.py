"""Stores for the data providers of a CBRAIN portal, and the client of its API."""
