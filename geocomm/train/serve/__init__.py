"""A model folder behind an OpenAI-compatible address, by an engine's own server."""
