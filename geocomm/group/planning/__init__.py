"""Links between the sites, what is chosen for them, and what a run over them takes."""
