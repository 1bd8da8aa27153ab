"""What the core's facts say about `conv3d_depthwise`: its config; the rest is as of images."""
