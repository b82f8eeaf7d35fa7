"""Implement the commands after parsing: prompt, call the library, print results."""
