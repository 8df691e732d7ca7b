"""Every interleaving of small scopes, with the endpoints and the switch's rules as they are; no second model.

`scopes.py` says what is explored, `explorer.py` explores it; `values.py`, `hosts.py` and `rack.py` are the
parts.
"""
