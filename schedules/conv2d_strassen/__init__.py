"""The algorithm `conv2d_strassen`: its TE definition and its schedule."""
