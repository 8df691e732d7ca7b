"""PyTorch scripts in the hosts of a cluster, a process a host, as torchrun would start them.

`script` says what each process is told, `ranks` starts, hears and ends them, `running` is a run of one
script, `record` what its steps took, `comparing` the same over Gloo, `jobs` a cluster file's. Nothing here
imports PyTorch.
"""
