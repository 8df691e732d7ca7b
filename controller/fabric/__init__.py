"""Leaves, spines and links, and the entries that the network and its jobs need on a switch."""
