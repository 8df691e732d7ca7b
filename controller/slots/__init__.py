"""Which job owns which slots of a switch, and which gets some next. No I/O."""
