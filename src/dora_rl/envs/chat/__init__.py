"""Messages and tools as token ids, and token ids as text, thinking and tool calls."""
