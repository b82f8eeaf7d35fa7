"""Run real servers on loopback for the tests: started once per test session or manually, and stopped at its end."""
