"""A depthwise convolution and the 1x1 convolution behind it as one kernel, slab by slab."""
