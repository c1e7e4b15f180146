"""Programs that make a release out of a checkout; none is part of the library or the benchmark."""
