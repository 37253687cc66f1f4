"""Turn the verse listing of Debian's `bible` program into kjv.txt (see README.md beside this file).

    bible -f "gen1:1-rev22:21" < /dev/null | python recipes/data/format_kjv.py > recipes/data/kjv.txt

Every line of the listing is "Ge1:1 In the beginning ...". The references must run without a gap, otherwise this stops.
"""

import re
import sys

TITLES = """
Genesis, Exodus, Leviticus, Numbers, Deuteronomy, Joshua, Judges, Ruth, 1 Samuel, 2 Samuel, 1 Kings, 2 Kings,
1 Chronicles, 2 Chronicles, Ezra, Nehemiah, Esther, Job, Psalms, Proverbs, Ecclesiastes, Song of Solomon, Isaiah,
Jeremiah, Lamentations, Ezekiel, Daniel, Hosea, Joel, Amos, Obadiah, Jonah, Micah, Nahum, Habakkuk, Zephaniah,
Haggai, Zechariah, Malachi, Matthew, Mark, Luke, John, Acts, Romans, 1 Corinthians, 2 Corinthians, Galatians,
Ephesians, Philippians, Colossians, 1 Thessalonians, 2 Thessalonians, 1 Timothy, 2 Timothy, Titus, Philemon,
Hebrews, James, 1 Peter, 2 Peter, 1 John, 2 John, 3 John, Jude, Revelation
"""
BOOKS = [title.strip() for title in TITLES.split(",")]
VERSE = re.compile(r"(\d?[A-Za-z]+)(\d+):(\d+) +(\S.*)")


def read_books(lines):
    """Returns one list of chapters per book, each chapter a list of verses. Raises ValueError at the first gap."""
    books, current = [], None
    for number, line in enumerate(lines, start=1):
        match = VERSE.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f"line {number}: {line!r} does not read 'Book1:1 text'")
        book, chapter, verse, text = match[1], int(match[2]), int(match[3]), match[4]
        if book != current:
            books.append([])
            current = book
        chapters = books[-1]
        if verse == 1:
            chapters.append([])
        if chapter != len(chapters) or verse != len(chapters[-1]) + 1:
            raise ValueError(f"line {number}: {book}{chapter}:{verse} does not follow the verse before it")
        chapters[-1].append(text)
    if len(books) != len(BOOKS):
        raise ValueError(f"the listing holds {len(books)} books, {len(BOOKS)} expected")
    return books


def format_book(title, chapters):
    lines = [title]
    for number, verses in enumerate(chapters, start=1):
        lines += [f"Chapter {number}", *verses]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    books = read_books(sys.stdin)
    sys.stdout.write("\n".join(format_book(title, chapters) for title, chapters in zip(BOOKS, books, strict=True)))
