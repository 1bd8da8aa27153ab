"""What the core's facts say about `conv2d_winograd_1d`: sizes, configurations."""
