"""A cluster while it runs: what was asked of it, what that means, and how it is shown (`p4reduce top`)."""
