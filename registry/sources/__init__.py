"""Where descriptors come from: one file for each kind of place."""
