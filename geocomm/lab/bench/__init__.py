"""What geocomm costs and moves, measured: links, codecs, all-reduce over an emulated network."""
