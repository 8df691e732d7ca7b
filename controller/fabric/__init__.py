"""The network of leaves, spines and links, and the entries that it and jobs need on a switch."""
