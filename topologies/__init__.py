"""Emulated clusters: Mininet racks whose switch runs the P4 program, and starting workers in their hosts."""
