"""Log in to REST services with bearer tokens: from a command, a variable, or an OIDC service."""
