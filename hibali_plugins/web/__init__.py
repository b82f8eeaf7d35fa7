"""Sites with a URL: web servers, which are only read, and WebDAV servers."""
