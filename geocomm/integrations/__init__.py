"""geocomm under frameworks that bring process groups of their own."""
