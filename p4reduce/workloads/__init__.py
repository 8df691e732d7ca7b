"""What runs on a cluster: the worker program, timed collectives, and training the digits network."""
