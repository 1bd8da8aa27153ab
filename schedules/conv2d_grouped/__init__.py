"""The algorithm `conv2d_grouped`: its TE definition and its schedule."""
