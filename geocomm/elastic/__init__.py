"""An elastic run: sites that die, leave and join while the others train on. Supervisor, agent, leader. No torch."""
