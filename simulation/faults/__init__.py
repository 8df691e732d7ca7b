"""Jobs from joining to leaving, and everything that may go wrong meanwhile, decided by one seed.

    schedule   what happens, as data (JSON): a cluster, its jobs, faults of packets and of machines
    drawing    a seed to a schedule
    world      one run: clock, links, switches, workers, controller; checks after every event
    shrinking  a failing schedule to a short one
    running    many seeds, in several processes

Real are the endpoints, the collectives, and the whole controller with its database: it runs on an event loop
whose clock is simulated. The switches are the model of `simulation.switch`, with the entries that the
controller writes over a simulated P4Runtime. `lockstep` gives each frame to the compiled program as well.
"""
