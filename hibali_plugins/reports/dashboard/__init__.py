"""The dashboard: pages on loopback about what runs and what was done, and a query of sites on request."""
