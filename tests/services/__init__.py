"""Real servers on loopback: started once for a test session or by hand, gone when it ends."""
