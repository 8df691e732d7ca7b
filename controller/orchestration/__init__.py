"""What jobs ask for, carried out. registry.py puts the parts together: each knows those before it.

engine.py has the queue of what is to be done; record.py and book.py what is known of jobs; switch_manager.py
the switches together: places.py gives and frees slots there, orphans.py is what nobody knows, rerouting.py
moves traffic to what works, demands.py is what jobs want of slots, setup.py and planning.py say how a job
runs. renewer.py lets jobs go on under a new
generation, lost.py finds out what the dead had sent, waitlist.py moves jobs between ring and switch,
adoption.py and loading.py take jobs over after a restart, sessions.py is the workers' side.
"""
