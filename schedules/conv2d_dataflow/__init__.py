"""The algorithm `conv2d_dataflow`: its TE definition, its schedule and its register programs."""
