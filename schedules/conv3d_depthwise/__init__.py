"""The algorithm `conv3d_depthwise`: its TE definition and its schedule."""
