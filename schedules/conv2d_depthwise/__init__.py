"""The algorithm `conv2d_depthwise`: its TE definition and its schedule."""
