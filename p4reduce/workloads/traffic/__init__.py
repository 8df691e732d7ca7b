"""Training traffic as data: models' layers and their times, from tables, files and traces; DDP's buckets.

`source.workload_of` is the way in: it knows bundled models by name and all kinds of files by what is in them.
Nothing here touches a cluster.
"""
