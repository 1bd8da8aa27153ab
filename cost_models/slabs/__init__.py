"""A depthwise convolution and the 1x1 convolution behind it, slab by slab: sizes and time."""
