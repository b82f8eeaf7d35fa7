"""Globus: who we are there, and what carries data between its collections."""
