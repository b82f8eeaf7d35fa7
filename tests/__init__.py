"""Test what users rely on, with real servers and programs."""
