"""Whole fabrics on a simulated clock: real endpoints, the controller's entries, the model of the switches."""
