"""A size that stays open at run time: one function of all sizes, kernels that count rows.

`samples` compares what a model becomes at a few sizes, `rows` makes kernels of the default rule go
row by row, `products` chooses the configurations of products, `module` puts one module together.
"""
