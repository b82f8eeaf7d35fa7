"""Read descriptors from other places: one module for each kind of place."""
