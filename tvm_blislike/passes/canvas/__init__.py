"""Images of any height and width: kernels of a canvas that leave out what an image lacks.

`extents` finds out which sizes of a model follow from those that stay open, `axes` where they stand
in a kernel's parameters, `margins` what kernels read beyond an image, `borders` copies an image
onto the canvas and results from it, `module` puts the module together.
"""
