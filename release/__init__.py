"""What makes a release out of a checkout; none of it is part of the library or the benchmark."""
