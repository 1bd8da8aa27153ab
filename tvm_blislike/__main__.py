"""`python -m tvm_blislike` is the command `tvm-blislike`."""

from tvm_blislike.cli import main

main()
