"""One job as a state machine, without I/O, threads or a clock.

- states.py has the states, and the table of which follows which.
- job.py is the machine: it hears what workers say, and answers with the effects of effects.py.
- workers.py knows who is in the job.
- moves.py, renewals.py and comparing.py have what is under way.
- specs.py says what a job, a worker and a plan are.
"""
