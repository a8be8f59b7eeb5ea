"""A value that somebody gave, as an error names it: on one line, of bounded length, whatever it is."""

_LONGEST = 160


def shown(value: object, longest: int = _LONGEST) -> str:
    """Its repr without line breaks, cut at `longest` characters; of one without a repr the type. Never raises."""
    try:
        text = repr(value)
    except Exception:  # a user's __repr__, or an int of too many digits
        return f"a {type(value).__name__} that cannot be shown"
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}…"
