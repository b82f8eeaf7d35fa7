"""Give other people access to files, and links to those without an account: `hibali share`, `hibali.shares`."""
