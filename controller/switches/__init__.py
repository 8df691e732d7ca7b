"""One switch over P4Runtime: its entries, changes to them, its program."""
