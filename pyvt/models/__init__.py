"""Model families: one architecture family a file, all over ``pyvt.layers``."""
