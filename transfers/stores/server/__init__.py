"""Store files at servers with single requests: what all kinds of such servers share."""
