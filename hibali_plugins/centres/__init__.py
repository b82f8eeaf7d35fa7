"""Profiles of computing centres: their sites as config.toml has them, without what is personal."""
