"""What commands do once their line is read: ask, call the library, show what came out."""
