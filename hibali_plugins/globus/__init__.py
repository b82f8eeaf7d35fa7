"""Transfers by Globus, and sites that only Globus reaches."""
