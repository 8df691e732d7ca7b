"""How a process lets others read its metrics (Prometheus). What they are, each room knows."""
