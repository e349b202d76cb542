"""What tests share: rank processes, jobs on this machine, the hub, the emulated WAN, data and its oracles."""
