"""The ground of geocomm: errors, units, options, addresses and the native module.

Every wing uses it, and nothing in it needs a peer. Begin with `options.py`: all that a user may set.
"""
