"""Run real servers on loopback for the tests: started once per test session or by hand, stopped at its end."""
