"""The block sizes of attention, from the caches of a core and its micro-kernels."""
