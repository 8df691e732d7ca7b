"""One switch over P4Runtime: what it holds, what is to be changed, its program."""
