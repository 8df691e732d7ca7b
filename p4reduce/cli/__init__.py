"""The `p4reduce` command, and what its commands share. Begin with app.py; a command is in commands/."""
