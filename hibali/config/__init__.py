"""The configuration file: its schema, sites, editing and importers."""
