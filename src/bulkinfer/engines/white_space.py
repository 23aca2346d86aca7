"""Answers that spin: held to a form, a model may go on with white space until its tokens are used up.

JSON allows it between any two of its parts. Asking for none of it there ends most of that; what is left, such as spaces
within a text, is noticed here.
"""

MAX_RUN_CHARS = 128
"""At the end of an unfinished answer. No layout of JSON indents so far, and no field of a form needs it."""


def is_spinning(text: str) -> bool:
    """Whether an unfinished answer ends with so much white space that nothing else is to be expected."""
    return len(text) >= MAX_RUN_CHARS and text[-MAX_RUN_CHARS:].isspace()
