"""One parser per way of writing tool calls."""
