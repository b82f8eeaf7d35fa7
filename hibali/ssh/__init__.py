"""Log in to sites over ssh: kept sessions, proxies for GSI, explanations of errors."""
