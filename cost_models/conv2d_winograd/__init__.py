"""What the core's facts say about `conv2d_winograd`: sizes, configurations, time."""
