"""Keys of the sites, the job's certificate authority, and words for what TLS refuses.

Whatever crosses sites loads its keys here. Begin with `keys.py`.
"""
