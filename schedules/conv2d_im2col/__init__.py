"""The algorithm `conv2d_im2col`: its TE definition and its schedule."""
