"""The soak: mixed jobs under changing faults for a long time, every sum checked, nothing that grows."""
