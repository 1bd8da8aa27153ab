"""A chain of depthwise and 1x1 convolutions, slab by slab: sizes and time."""
