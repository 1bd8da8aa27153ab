"""The architectures of the example zoo, one file per family."""
