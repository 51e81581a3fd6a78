"""The sentences in which too many words stand for other words: `python -m tests.sentences [paths]` prints them.

A reader has to look up the meaning of each pro-form, so a sentence with a share above SHARE is a riddle. The list of
pro-forms is closed: personal, relative, interrogative and indefinite pronouns. A determiner before its noun ("this
route", "each worker") names something, so it counts only where no noun can follow. "Where", "there", "so", "as" and
"how" mostly join clauses and name no thing, so they do not count. Text in a code span is one word that names something.
Tables and blocks of code are skipped.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.support.trees import every, parsed

ROOT = Path(__file__).resolve().parents[1]
SHARE = 0.30
FEWEST_WORDS = 5
_words = str.split  # ruff wants a literal list, one word a line

PRO_FORMS = _words(
    "it its itself they them their theirs themselves he she him her his what which who whom whose whatever whichever "
    "whoever ones none others everything anything nothing something everybody anybody nobody somebody everyone anyone "
    "someone"
)
DETERMINERS = _words("this that these those one some any each such all both other another few many most either neither")
PUNCTUATION = set(".,;:!?()")
#: No noun follows a determiner that stands before one of these.
_JOINING = _words(
    "is are was were be been being has have had do does did can cannot could may might must shall should will would "
    "not never and or nor but if when while until unless because since so than as of in on at by for from with without "
    "to into onto out over under after before between through about against a an the no how why too also alone only "
    "then you we that this these those"
)
NOT_A_NOUN = {*PRO_FORMS, *PUNCTUATION, *_JOINING}

_CODE = re.compile(r"``.+?``|`[^`]+`|<[^<> ]+>|(?<=\])\([^()\s]*\)", re.S)
_END = re.compile(r"(?<=[.!?])[*_)\"”]*\s+(?=[A-Z`*(\"“\[])")
_TOKEN = re.compile(r"\w[\w'’./-]*\w|\w|[.,;:!?()]")
#: An entry of a list, a quotation and a heading begin a paragraph without an empty line before.
_ENTRY = re.compile(r"^\s*(?:[*+-]|\d+\.|>|#+:?)\s+")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_COMMENT = re.compile(r"^(|.*\s)#:? (.*)")


class Sentence(NamedTuple):
    """A sentence of a file."""

    path: Path
    line: int  # where its paragraph begins
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.share:.0%} {self.text}"

    @property
    def share(self) -> float:
        """The part of the words that are pro-forms, from 0 to 1; 0 for a text too short to be a sentence."""
        tokens = _TOKEN.findall(_CODE.sub(" CODE ", self.text.replace("None", "CODE")).lower())
        words = [token for token in tokens if token not in PUNCTUATION]
        pro_forms = sum(
            token in PRO_FORMS or (token in DETERMINERS and after in NOT_A_NOUN)
            for token, after in pairwise([*tokens, "."])
        )
        return pro_forms / len(words) if len(words) >= FEWEST_WORDS else 0.0


def paragraphs(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """The paragraphs and list entries of a text, each with the number of its first line."""
    collected: list[str] = []
    start, in_code = first_line, False
    for number, line in enumerate([*text.splitlines(), ""], first_line):
        fence = _FENCE.match(line) is not None
        is_prose = bool(line.strip()) and not (in_code or fence or line.lstrip().startswith("|"))
        in_code ^= fence
        if collected and (not is_prose or _ENTRY.match(line)):
            yield start, " ".join(collected)
            collected = []
        if is_prose and (collected or not line.startswith("    ")):
            start = start if collected else number
            collected.append(_ENTRY.sub("", line).strip())


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """The comments, docstrings and other literal texts of a module, each with the number of its first line."""
    tree = parsed(source)
    inside = {id(part) for node in every(tree, ast.JoinedStr) for part in node.values}
    for node in every(tree, ast.Constant, ast.JoinedStr):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        said = [part.value if isinstance(part, ast.Constant) else "`X`" for part in parts]
        if id(node) not in inside and all(isinstance(part, str) for part in said):
            yield node.lineno, inspect.cleandoc("".join(said))
    comments = [_COMMENT.match(line) for line in source.splitlines()]
    yield 1, "\n".join("" if found is None else ("* " if found[1].strip() else "") + found[2] for found in comments)


def sentences(path: Path) -> Iterator[Sentence]:
    """The sentences of a Python file's literal texts and comments, or of any other file's whole text."""
    source = path.read_text(encoding="utf-8")
    for first_line, text in texts_of_python(source) if path.suffix == ".py" else [(1, source)]:
        for line, paragraph in paragraphs(text, first_line):
            yield from (Sentence(path, line, sentence) for sentence in _END.split(paragraph))


def riddles(place: Path) -> list[Sentence]:
    """The sentences of a file, or of the Python and Markdown files of a folder, whose share is above SHARE."""
    files = [place] if place.is_file() else sorted(place.rglob("*.[pm][yd]"))
    return [sentence for file in files for sentence in sentences(file) if sentence.share > SHARE]


if __name__ == "__main__":
    for named in sys.argv[1:] or ["egressproxy", "docs", *ROOT.glob("*.md")]:
        for riddle in riddles(ROOT / named):
            print(riddle)
