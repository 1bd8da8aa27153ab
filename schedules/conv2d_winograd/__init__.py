"""The algorithm `conv2d_winograd`: its TE definition and its schedule."""
