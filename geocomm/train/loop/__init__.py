"""From a configuration to the end of a run: its checks, engine, loop and checkpoints. Entry point: `driver.run`."""
