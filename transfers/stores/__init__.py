"""Stores: one module or folder for each kind."""
