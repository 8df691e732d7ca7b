"""A run as a sequence diagram that moves: `p4reduce simulate-faults --seed N --page FILE`.

    a run ─ observing.py: what passes links and switches ─► steps.py: those that a page has room for
          ─ packets.py: what each is ─ words.py: what is said of it ─► page.py ─► assets/: what draws it

Nothing here decides anything: the run is the same without it.
"""
