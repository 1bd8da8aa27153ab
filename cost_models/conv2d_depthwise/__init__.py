"""What the core's facts say about `conv2d_depthwise`: sizes, configurations, time."""
