"""Connections between processes of different sites: dialling, TLS, the greeting that says what a connection is for.

Begin with `greeting.py`.
"""
