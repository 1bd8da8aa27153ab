"""The schedule of every function without a template."""
