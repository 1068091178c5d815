"""Anthropic's messages API, translated into a chat and back."""
