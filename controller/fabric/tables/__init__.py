"""The tables that the controller fills; membership.py has those of p4src/membership.p4, and so on."""
