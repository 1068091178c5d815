"""The HTTP server: routes, request models, answers on the wire; beside it no tensors, no files."""
