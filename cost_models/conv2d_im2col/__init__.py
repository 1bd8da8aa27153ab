"""What the core's facts say about `conv2d_im2col`: sizes, configurations, time."""
