"""The error that a simulation fails with."""


class InvariantError(AssertionError):
    """A part of the system did what the design rules out."""
