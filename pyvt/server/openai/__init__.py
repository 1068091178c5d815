"""OpenAI's API: request models, and answers built by hand."""
