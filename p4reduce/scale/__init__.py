"""Sums over more GPUs than any machine emulates: flows over links on a simulated clock.

`flows` shares links among flows, `ring` times a ring's steps, `fabric` has the links, `strategies` plays one
sum, `iteration` a whole iteration of training, `sweep` many of them at once. Nothing here is measured.
"""
