"""The model of a site as local steps see it: its fragments, views of its parameters, its optimizers and collectives."""
