"""The steps from an imported Relax module to scheduled PrimFuncs, one file each."""
