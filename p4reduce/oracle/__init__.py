"""The oracle: what a switch has to do with every packet, in Python."""
