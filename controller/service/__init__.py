"""The gRPC service, and what it shows."""
