"""Work that jobs ask for. registry.py puts the parts together; each knows those before it.

- engine.py queues what is to be done; record.py and book.py hold what is known of jobs.
- switch_manager.py has all switches: allocations.py gives and frees slots, orphans.py finds entries of
  unknown jobs, rerouting.py moves traffic to links and spines that work.
- demands.py says which slots jobs want; planning.py and setup.py say how a job runs.
- renewer.py lets jobs go on under a new generation; lost.py finds out what dead workers had sent, missing.py
  which workers a collective waits for.
- waitlist.py moves jobs between ring and switch.
- adoption.py and loading.py take jobs over after a restart; sessions.py is the workers' side.
"""
