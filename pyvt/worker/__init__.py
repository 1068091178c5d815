"""Executes steps: rows of requests, the forward pass, the KV cache and sampling."""
