"""Sites that could be added: read from what other programs know, or from what a centre publishes."""
