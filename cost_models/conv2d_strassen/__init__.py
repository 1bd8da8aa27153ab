"""What the core's facts say about `conv2d_strassen`: configurations and their predicted time."""
