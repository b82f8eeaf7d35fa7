"""The Python API: what `import hibali` offers. Use the names of `hibali`; docs/python.md says what is public."""
