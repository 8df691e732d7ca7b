"""The soak: mixed jobs under changing faults for a long time; every sum is checked, and nothing may grow."""
