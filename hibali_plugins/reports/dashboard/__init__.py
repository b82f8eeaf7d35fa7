"""The dashboard: read-only pages on loopback about what runs and what was done."""
