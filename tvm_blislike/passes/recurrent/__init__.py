"""Recurrent layers: a matrix product of all inputs, then a kernel with a loop over time.

`to_kernels` rewrites the calls and arranges their constants, `blocks` chooses register blocks,
`kernel` loops over time and units, `products` multiplies states, and `cells` and `functions` say
what becomes of the sums.
"""
