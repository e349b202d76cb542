"""The demo: a small model trained over emulated sites, on Gloo and on geocomm, or while a site dies and returns."""
