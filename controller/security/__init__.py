"""Who may talk to whom: certificates and TLS, join tokens, limits of the gRPC services."""
