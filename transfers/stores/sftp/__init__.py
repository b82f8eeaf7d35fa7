"""Folders behind the SFTP subsystem of sshd."""
