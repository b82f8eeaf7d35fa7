"""Stores in Globus collections."""
