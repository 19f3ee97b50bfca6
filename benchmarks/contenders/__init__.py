"""Those that are compared: one module for each, all behind `Contender`."""
