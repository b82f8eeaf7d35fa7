"""Send large files by GridFTP between this machine and a site that has a server."""
