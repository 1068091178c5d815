"""Dumpers that run other people's code, and the goldens they wrote."""
