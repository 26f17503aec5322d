"""The index answers where things are; every file and name in its answers exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def answers() -> list[str]:
    rows = [line.split("|") for line in INDEX.splitlines() if line.startswith("| ")]
    return [row[2] for row in rows if row[1].strip().endswith("?")]


def test_there_are_at_least_ten_questions() -> None:
    assert len(answers()) >= 10


def test_every_answer_names_files_and_what_is_in_them() -> None:
    for answer in answers():
        quoted = re.findall(r"`([^`]+)`", answer)
        files = [word for word in quoted if "/" in word]
        assert files, answer
        texts = [(ROOT / file).read_text(encoding="utf-8") for file in files]
        for word in set(quoted) - set(files):
            assert any(
                re.search(rf"(class|def) {word}\b|^{word} = ", text, re.M) for text in texts
            ), word


def test_the_glossary_is_in_order_of_the_alphabet_in_each_part() -> None:
    for part in GLOSSARY.split("\n## ")[1:]:
        terms = [term.casefold() for term in re.findall(r"^(\S.*)\n: ", part, re.MULTILINE)]
        assert len(terms) > 3
        assert terms == sorted(terms)
