"""Certificates and TLS, join tokens, and limits on what one peer may ask."""
