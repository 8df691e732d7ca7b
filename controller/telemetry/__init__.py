"""A process's metrics (Prometheus): serves its own, reads others'. Each package defines its metrics."""
