"""The page of a run: all sites at a glance, from the run store, for a browser on this machine or a file to send."""
