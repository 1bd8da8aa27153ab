"""Batches: where the images of one do not meet, and what is computed for some of them at a time."""
