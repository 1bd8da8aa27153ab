"""From a scheduled PrimFunc to loops: what TVM's own passes cannot do."""
