"""One job as a state machine, without I/O, threads or a clock.

states.py has its states and the table of which follows which; job.py the machine, which hears what workers
say and answers with effects.py; workers.py who is in it; moves.py, renewals.py and comparing.py what is under
way; specs.py what a job, a worker and a plan are.
"""
