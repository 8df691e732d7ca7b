"""Programs for a cluster: the worker, timed collectives, and training of the digits network."""
