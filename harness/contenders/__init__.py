"""The contenders: a file for each library, what they have in common in base.py, and all of them in registry.py."""
