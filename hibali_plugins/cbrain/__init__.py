"""Sites that are CBRAIN portals: their files, and the tools that are installed there."""
