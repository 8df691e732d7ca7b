"""Who owns which slots of a switch, and who is to have some next. No I/O."""
