"""The errors grpokit raises on purpose.

Each has one message for a person: what was expected, what happened instead, and what to do. The command line prints the
message and exits with the error's code; only a bug shows a traceback.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/](torch|numpy|PIL|safetensors)[\\/]")  # what components stand on


class GrpokitError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line returns for it.

    Args:
        parts: the message.
        page: the page of the documentation that explains it, such as "guards#checkpoints". The command line shows its
            address below the message.
    """

    exit_code = 1
    page = ""

    def __init__(self, *parts: object, page: str = "") -> None:
        super().__init__(*parts)
        if page:
            self.page = page


class UsageError(GrpokitError):
    """The user's input is wrong: a config, an option, a data file, an argument. Exit code 2."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file or an override is wrong."""


class DataError(UsageError):
    """A prompts file, a target image or a dataset is wrong."""


class PluginError(UsageError):
    """A plugin is unknown, ambiguous or broken, lacks a dependency, or got wrong parameters."""


class CheckpointError(UsageError):
    """A checkpoint is damaged, was not written by grpokit, or belongs to another policy."""


class RewardError(GrpokitError):
    """A reward raised, or did not return one finite number (or NaN) per sample."""


class RunError(GrpokitError):
    """A run cannot continue: what happened, at which step, and what to do."""


def reword(error: GrpokitError, text: str) -> GrpokitError:
    """The same kind of error with another message; a plugin's own class becomes grpokit's nearest base class.

    >>> class Mine(DataError):
    ...     def __init__(self, file, line): super().__init__(f"{file}:{line}")
    >>> reword(Mine("a.txt", 3), "a.txt:3, in the config")
    DataError('a.txt:3, in the config')
    """
    kind = next(k for k in type(error).__mro__ if globals().get(k.__name__) is k)
    other: GrpokitError = kind(text, page=error.page)
    if hasattr(error, "agreed"):  # see `grpokit.processes.team`
        other.agreed = error.agreed  # type: ignore[attr-defined]
    return other


def address(page: str) -> str:
    """Where a page of the documentation is: its file in a clone, else on the site that the package's metadata names.

    Args:
        page: its name and perhaps a heading's anchor, such as "guards#checkpoints".
    """
    import importlib.metadata

    name, _, anchor = page.partition("#")
    file = Path(__file__).parent.parent / "docs" / f"{name}.md"
    if file.is_file():
        return f"{file}{anchor and f' (#{anchor})'}"
    links = importlib.metadata.metadata("grpokit").get_all("Project-URL") or []
    site = next(link.removeprefix("Documentation, ") for link in links if link.startswith("Documentation, "))
    return f"{site.rstrip('/')}/{name}/{anchor and f'#{anchor}'}"


def require(package: str, *, least: str, what: str) -> None:
    """Refuse what needs an optional package, unless it is installed in the version `least` or a later one."""
    import importlib.metadata
    import importlib.util

    from packaging.version import Version

    installed = importlib.util.find_spec(package) is not None
    if not installed or Version(importlib.metadata.version(package)) < Version(least):
        raise UsageError(
            f"{what} needs {package} {least} or later, which is not installed. Run: pip install '{package}>={least}'"
        )


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the choice at most two letters away from `name`, or an empty string.

    >>> nearest("stepz", ["steps", "seed"])
    " (did you mean 'steps'?)"
    >>> nearest("toy-glyf", ["toy-lm", "toy-glyph"])
    " (did you mean 'toy-glyph'?)"
    >>> nearest("resolution", ["revision"]), nearest("head", ["head_path"])
    ('', '')
    >>> nearest("gpu", ["cpu", "cuda"])  # a short name with another first letter is another word
    ''
    """

    def is_anagram(other: str) -> bool:
        return sorted(name) == sorted(other)

    def near(other: str) -> bool:
        if len(name) <= 3 and other[:1] != name[:1]:
            return False
        most = 2 if len(name) > 4 or is_anagram(other) else len(name) // 3
        return abs(len(name) - len(other)) <= most and _letters_apart(name, other) <= most

    def rank(other: str) -> tuple[bool, int]:
        return is_anagram(other), -_letters_apart(name, other)

    likely = [other for other in choices if near(other)]
    return f" (did you mean '{max(likely, key=rank)}'?)" if likely else ""


def _letters_apart(a: str, b: str) -> int:
    """The fewest insertions, deletions and replacements between two names."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            deletion = last[j] + 1
            insertion = row[-1] + 1
            replacement = last[j - 1] + (x != y)
            row.append(min(deletion, insertion, replacement))
    return row[-1]


def a_type(value: object) -> str:
    """The type of a value with its article.

    >>> a_type(3), a_type("x"), a_type(None)
    ('an int', 'a str', 'a NoneType')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "step"), plural(2000, "micro-batch")
    ('1 step', '2,000 micro-batches')
    >>> plural(2, "loss")
    '2 losses'
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith(('ch', 'ss')) else 's'}"


def brief(value: object, *, most: int = 80) -> str:
    """`value` for a message: its `repr`, cut after `most` characters, or the size of a list.

    >>> brief("abc"), brief([1, 2]), brief(None), brief({"b": 1})
    ("'abc'", 'a list of 2', 'nothing (null)', 'keys (b)')
    """
    if value is None:
        return "nothing (null)"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"keys ({on_one_line(', '.join(map(str, value)), most=most)})" if value else "no keys"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**80:
        return "a number of more than 80 digits"  # Python may refuse to write it out
    return _cut(repr(value), most)


def one_line(error: BaseException, *, most: int = 300) -> str:
    """An error's text on one line, without a final full stop; the name of its type if it has no text.

    >>> one_line(ValueError("no\\n  such file.")), one_line(KeyError())
    ('no such file', 'KeyError')
    """
    try:
        text = str(error)
    except Exception:  # a user's class may fail in its __str__
        return f"{type(error).__name__}, whose message cannot be shown"
    line = on_one_line(text.strip().rstrip("."), most=most)
    return line or type(error).__name__


def on_one_line(text: str, *, most: int = 300) -> str:
    """A text on one line, cut after `most` characters, without control characters.

    >>> on_one_line("red:\\n \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    line = " ".join(text[: 20 * most].split())
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return _cut(printable, most)


def error_line(error: BaseException, *, most: int = 300) -> str:
    """An error's type and text, on one line.

    >>> error_line(ValueError("no\\n  such file.")), error_line(KeyError())
    ('ValueError: no such file', 'KeyError')
    """
    name, text = type(error).__name__, one_line(error, most=most)
    return text if text.startswith(name) else f"{name}: {text}"


def raised_at(error: BaseException) -> str:
    """Where an error was raised: the file, the line and the function, in brackets; not inside of torch and its kind."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if not _LIBRARY.search(frame.filename)]
    last = (own or frames)[-1]
    return f"({Path(last.filename).name}, line {last.lineno}, in {last.name})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
