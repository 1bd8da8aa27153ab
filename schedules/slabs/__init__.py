"""A chain of depthwise and 1x1 convolutions as one kernel, slab by slab."""
