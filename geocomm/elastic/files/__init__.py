"""What a site keeps on its disk and gives others: frames, states, snapshots, and the agents it knows."""
