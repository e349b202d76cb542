"""Meeting through the hub: it, the tunnels to it, and torch's rendezvous and torchrun over them.

A tunnel takes up a store's connection again after a loss, without torch noticing. That is why this is no stunnel.
"""
