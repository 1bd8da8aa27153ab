"""The algorithm `conv2d_direct`: its TE definition and its schedule."""
