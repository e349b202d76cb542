"""The ground of geocomm: errors, units, options, addresses and the native module. Nothing in it needs a peer."""
