"""Keys of the sites, the job's certificate authority, and words for what TLS refuses."""
