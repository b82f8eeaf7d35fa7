"""Containers that only the administrators of a centre install: Sarus and Shifter."""
