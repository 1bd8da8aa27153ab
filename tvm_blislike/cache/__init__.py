"""Compiled models that are kept, so that the same model starts at once the next time."""
