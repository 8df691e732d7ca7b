"""Diagnosis of what a job waits for, and why: `observations` gathers facts twice, `diagnosis` judges them."""
