"""Move data between sites and verify it."""
