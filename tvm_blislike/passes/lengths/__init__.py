"""A size that stays open at run time: one function of all sizes, kernels that count rows.

`imports` compares what a model is at a few sizes, `samples` what it becomes there, `rows` makes
kernels of the default rule go row by row, `products` chooses the configurations of products,
`module` puts one module together.
"""
