"""From prompts to texts: the core that steps, what goes in, what comes out."""
