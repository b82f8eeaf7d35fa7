"""The configuration file: its schema, sites and editing."""
