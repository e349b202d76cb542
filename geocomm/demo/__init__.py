"""The demo: a small model trained over two emulated sites, on Gloo and on geocomm, and a table."""
