"""Texts that other machines have said, for a person at a terminal."""


def printable(text: str, keep: str = "") -> str:
    """The text without what a terminal would obey. keep: control characters that stay."""
    return "".join(one if one.isprintable() or one in keep else "?" for one in text)
