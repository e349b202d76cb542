"""What the sites of an elastic run agree on, and how: the journal and the protocol around it. No torch, no sockets."""
