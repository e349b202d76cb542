"""The models that are trained: presets, and how they are built."""
