"""What the other packages share."""

__version__ = "0.1.0"
