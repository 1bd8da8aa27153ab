"""The algorithm `conv2d_winograd_1d`: its TE definition and its schedule."""
