"""Remove local files of which a site holds a verified copy."""
