"""Stores for folders that the SFTP subsystem of sshd serves."""
