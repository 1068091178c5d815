"""Building blocks of models: modules with parameters, over ``pyvt.ops``."""
