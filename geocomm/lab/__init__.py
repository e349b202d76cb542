"""A wide-area network on one machine, the benchmarks of a link and of the codecs, and the demo.

Nothing of a user's run needs it. The commands `wan`, `bench` and `demo` use it, and so do the tests. Begin with
`emulator/emulated_wan.py`.
"""
