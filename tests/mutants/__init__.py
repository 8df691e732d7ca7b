"""Mutants of the tables and machines that decide, one change each, and which tests find them.

    making ──► targets: whose mutants, and by which steps to look for them ──► finding ──► __main__: the score

Our own rather than mutmut or cosmic-ray: those start a process with all its imports for each mutant, know
tests but neither scopes nor seeds, and cannot change a row of a table in a string or in compiled JSON.
"""
