"""Finds how an environment is built from what lies in its source tree, by trying."""
