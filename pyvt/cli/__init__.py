"""The ``pyvt`` command; one file a subcommand, imported when it is used."""
