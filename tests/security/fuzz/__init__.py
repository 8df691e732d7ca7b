"""Fuzzing of what reads other people's bytes in Python, and of the agent: `python -m tests.security.fuzz`."""
