"""Helpers for whoever adds a kernel, a model or a backend: cases, tolerances, goldens, fakes."""
