"""The training driver: causal language models with DeepSpeed over several sites. Entry point: `driver.run`."""
