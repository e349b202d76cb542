"""Training with local steps: each site trains by itself for some steps, then the sites average what they learned."""
