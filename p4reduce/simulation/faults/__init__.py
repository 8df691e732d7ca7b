"""Jobs from joining to leaving, and everything that may go wrong meanwhile, decided by one seed.

    schedule   what happens, as data (JSON): a cluster, its jobs, faults of packets and of machines
    drawing    a seed to a schedule
    scene      what all parts of a run share: the schedule, the clock, the trace
    world      all that there is: links, switches, workers, the controller's lives
    mishaps    what breaks in it
    playing    one run, and the checks after every event and in the end
    shrinking  a failing schedule to a short one
    running    many seeds, in several processes

Each imports only from those above it (`world` what it is made of, from `links` to `worker`). The endpoints,
the collectives, a worker's machines, and the whole controller with its database are real: the controller runs
on an event loop whose clock is simulated. The switches are the model of `p4reduce.oracle`, with the entries
that the controller writes over a simulated P4Runtime. `lockstep` gives each frame to the compiled program as
well.
"""
