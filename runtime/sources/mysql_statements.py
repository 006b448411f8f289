"""Statements in the binary log: what kind they are, and which tables they are about.

Nothing is ever learned about columns here: only that a table may have others from now on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | \#[^\n]* | --(?:\s[^\n]*|$) )
  | (?P<executed> /\*M?!\d* | \*/ )              # MySQL runs what is in such a comment
  | (?P<comment> /\*.*?(?:\*/|$) )
  | (?P<quoted> `(?:[^`]|``)*` | "(?:[^"\\]|\\.|"")*" )
  | (?P<text> '(?:[^'\\]|\\.|'')*' )
  | (?P<word> [^\W]\w*(?:\$\w*)* | \$[\w$]+ | [\w$]+ )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
DDL = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"})
_DML = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "CALL"})
_BETWEEN = frozenset({"IF", "NOT", "EXISTS", "ONLINE", "OFFLINE", "IGNORE"})
_NO_TABLES = frozenset({"COLUMN", "INDEX", "KEY"})

Name = tuple[str | None, str]  # database and table


@dataclass(frozen=True, slots=True)
class Statement:
    """`verb` in capitals; `tables` are those that it makes, changes, empties or removes."""

    verb: str
    tables: tuple[Name, ...] = ()
    schema: bool = False  # whether the tables may have other columns behind it
    database: str | None = None  # that it removes
    words: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def changes_rows(self) -> bool:
        return self.verb in _DML

    def mentions(self, db: str, table: str, default: str) -> bool:
        """Whether it may be about the table, when nothing better is known."""
        return table in self.words and (db == default or db in self.words)


def read(sql: str, fold: bool = False) -> Statement:
    """`fold` for servers that keep names of tables in small letters, whatever statements say."""
    if fold:
        made = read(sql)
        return replace(
            made,
            tables=tuple((db and db.lower(), table.lower()) for db, table in made.tables),
            database=made.database and made.database.lower(),
            words=frozenset(word.lower() for word in made.words),
        )
    tokens = _behind_settings(_tokens(sql))
    if not tokens:
        return Statement("")
    verb = tokens[0].word
    words = frozenset(token.name for token in tokens if token.is_name)
    parser = _Parser(tokens)
    match verb:
        case "CREATE" | "ALTER" | "DROP" | "RENAME" | "TRUNCATE":
            return parser.ddl(verb, words)
        case _:
            return Statement(verb, words=words)


def _behind_settings(tokens: list[_Token]) -> list[_Token]:
    """The statement behind MariaDB's SET STATEMENT a = b FOR."""
    if [token.word for token in tokens[:2]] != ["SET", "STATEMENT"]:
        return tokens
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.word == "FOR":
            return tokens[index + 1 :]
    return tokens


def emptied(sql: str) -> Statement | None:
    """As a TRUNCATE, a DELETE that names a table and nothing else."""
    tokens = _behind_settings(_tokens(sql))
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if len(tokens) not in (3, 5) or [token.word for token in tokens[:2]] != ["DELETE", "FROM"]:
        return None
    names = _Parser([_Token("TRUNCATE"), *tokens[2:]]).ddl("TRUNCATE", frozenset())
    named = [part for name in names.tables for part in name if part]
    return names if 2 * len(named) == len(tokens) - 1 else None


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    quoted: bool = False
    is_name: bool = False

    @property
    def word(self) -> str:
        """In capitals; none for what is quoted."""
        return "" if self.quoted else self.text.upper()

    @property
    def name(self) -> str:
        return self.text


def _tokens(sql: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup, match.group()
        if kind == "quoted":
            mark = text[0]
            found.append(_Token(text[1:-1].replace(mark * 2, mark), True, True))
        elif kind == "word":
            found.append(_Token(text, False, True))
        elif kind == "sign":
            found.append(_Token(text))
        elif kind == "text":
            found.append(_Token("", True))
    return found


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 1

    def ddl(self, verb: str, words: frozenset[str]) -> Statement:
        if verb == "TRUNCATE":
            self._skip("TABLE")
            return Statement(verb, self._names(1), words=words)
        if verb == "RENAME":
            if not self._skip("TABLE") and not self._skip("TABLES"):
                return Statement(verb, words=words)
            return Statement(verb, self._renamed(), True, words=words)
        kind = self._kind()
        if kind in ("DATABASE", "SCHEMA") and verb == "DROP":
            name = self._names(1)
            return Statement(verb, schema=True, database=name[0][1] if name else None, words=words)
        if kind == "TABLE":
            # Where there is such a table already it stays as it is; where there is none, nothing
            # was known of it.
            only_missing = (
                verb == "CREATE" and self._tokens[self._at : self._at + 1] and self._is("IF")
            )
            tables = self._names(None if verb == "DROP" else 1)
            if verb == "ALTER":
                tables += self._named_by_alter()
            return Statement(verb, tables, not only_missing, words=words)
        if kind == "INDEX":
            # Another key, if any: columns are not touched, and the primary key has a name of its own.
            begin = self._at
            while self._more() and not self._is("ON"):
                self._at += 1
            before = [token.word for token in self._tokens[1:begin]]
            names = [token.text.upper() for token in self._tokens[begin : self._at]]
            self._skip("ON")
            keys = "UNIQUE" in before or (verb == "DROP" and "PRIMARY" in names)
            return Statement(verb, self._names(1), keys, words=words)
        return Statement(verb, words=words)

    def _kind(self) -> str:
        """What is created, altered or dropped; nothing for temporary tables, which are no one's."""
        for _ in range(8):
            word = self._tokens[self._at].word if self._more() else ""
            self._at += 1
            if word in ("TABLE", "TABLES"):
                return "TABLE"
            if word in ("INDEX", "DATABASE", "SCHEMA"):
                return word
            if word not in (
                "OR", "REPLACE", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR",
            ):  # fmt: skip
                return ""
        return ""

    def _names(self, most: int | None) -> tuple[Name, ...]:
        names: list[Name] = []
        while self._more():
            while self._more() and self._tokens[self._at].word in _BETWEEN:
                self._at += 1
            name = self._name()
            if name is None:
                break
            names.append(name)
            if len(names) == most or not self._skip(","):
                break
        return tuple(names)

    def _name(self) -> Name | None:
        if not self._more() or not self._tokens[self._at].is_name:
            return None
        first = self._tokens[self._at].name
        self._at += 1
        if self._skip(".") and self._more():
            second = self._tokens[self._at].name
            self._at += 1
            return first, second
        return None, first

    def _renamed(self) -> tuple[Name, ...]:
        names: list[Name] = []
        while self._more():
            names += self._names(1)
            while self._more() and not self._is("TO"):
                self._at += 1
            self._skip("TO")
            names += self._names(1)
            if not self._skip(","):
                break
        return tuple(names)

    def _named_by_alter(self) -> tuple[Name, ...]:
        """The table's new name, or the one that a partition is exchanged with."""
        exchanged = False
        while self._more():
            self._at += 1
            word = self._tokens[self._at - 1].word
            exchanged = exchanged or word == "EXCHANGE"
            if exchanged and word == "WITH" and self._skip("TABLE"):
                return self._names(1)
            if word != "RENAME" or not self._more():
                continue
            if self._tokens[self._at].word in _NO_TABLES:
                continue
            if not self._skip("TO"):
                self._skip("AS")
            return self._names(1)
        return ()

    def _more(self) -> bool:
        return self._at < len(self._tokens)

    def _is(self, word: str) -> bool:
        return self._tokens[self._at].word == word

    def _skip(self, word: str) -> bool:
        if self._more() and self._is(word):
            self._at += 1
            return True
        return False
