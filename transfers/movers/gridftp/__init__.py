"""Large files by GridFTP."""
