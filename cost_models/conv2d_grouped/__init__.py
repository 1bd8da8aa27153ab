"""What the core's facts say about `conv2d_grouped`: configurations; the rest is depthwise."""
