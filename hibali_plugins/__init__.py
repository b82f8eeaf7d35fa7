"""Features of hibali, one folder each: its `entry_points.txt` names what it adds, and hibali works without it."""
