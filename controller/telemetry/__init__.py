"""Serves a process's metrics (Prometheus), and reads others'. Each package defines its own metrics."""
