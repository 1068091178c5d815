"""From the text that a model writes to what a client is told: reasoning, content, tool calls."""
