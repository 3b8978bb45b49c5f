"""Text for a terminal whose encoding lacks ᵀ, × and the like.

`printable` is for texts that users print. Tools set `ERRORS` on their standard output, so that all
they print is readable.
"""

import codecs
import sys

ERRORS = "gdpa_inductor"  # the name of the error handler: text.encode("ascii", ERRORS)
_PLAIN = {"ᵀ": "^T", "×": "x", "·": "*", "…": "...", "−": "-", "±": "+-", "–": "-", "→": "->"}
_PLAIN |= {"█": "#", "│": "|", "└": "+", "─": "-", "²": "^2"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    words = (_PLAIN.get(x) or x.encode("ascii", "backslashreplace").decode() for x in lacking)
    return "".join(words), error.end


codecs.register_error(ERRORS, _plain)


def printable(text: str) -> str:
    """`text`, in characters that standard output can encode: `Q K^T` for `Q Kᵀ` in ascii."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, ERRORS).decode(encoding)


def write_readably() -> None:
    """Let standard output and error take any text, in words where they have no character."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors=ERRORS)
