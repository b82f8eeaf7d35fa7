"""HTTP: errors, limits on the size and time of answers, a client, and documents on the web."""
