"""`geocomm up`: the keys, the script and `geocomm run` of every site, over the system's ssh, from one machine."""
