"""Ways to sum gradients over all workers, side by side, behind one interface."""
