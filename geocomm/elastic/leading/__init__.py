"""The agent that leads: its lines to the others, what it answers, and who leads next, by promotion or by etcd."""
