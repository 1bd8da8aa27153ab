"""Looking at machine code and at the machine: k loops, their cycles, peaks."""
