"""Stage 1, inside each scalar: tells `${ENV_NAME}` from `${event.path}` by shape and place.

Never looks a value up: what happens to be set where the compiler runs must not change the job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .diagnostics import Diagnostics, quote
from .fields import is_event_field, suggest
from .parse import Scalar
from .plan import EnvRef, Field, Literal
from .span import Span

_ENV = re.compile(r"([A-Z_][A-Z0-9_]*)(?::-([^}]*))?\Z")
_PATH = re.compile(r"[a-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*\Z")
_LOOKS_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TOKEN = re.compile(r"\$\$|\$\{[^}]*\}?|\$|[^$]+")
MAX_PATH = 3
UNKNOWN = EnvRef("?")  # stands where a reference could not be read: any text at all

# Places where a password hides in plain sight: URLs, key=value connection strings, and the names
# of client settings that hold one. `\0` stands for a value that is not in the file.
_NEXT_URL = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_SCHEME = re.compile(r"\s*([^:/?#\s]*)://")
_BARE_LOGIN = re.compile(r"[^/\s:@]*:(?!\\)([^/\s@]+)@")  # but not C:\x@y
_PASSWORD_KEY = re.compile(
    r"(?:pass(?:word|wd|phrase)?|pwd|token|secret|jwt|(?:api|access)[._-]?key|credentials?"
    r"|(?<![a-z_])auth)\s*=\s*['\"]?([^\s'\"&;]+)",  # but not `require_auth=`
    re.IGNORECASE,
)
_HAS_USERS = ("mysql", "postgres", "postgresql", "redis", "rediss")  # elsewhere `x@` is a token
_SECRET_SETTING = re.compile(
    r"passw|passphrase|secret|token(?!\.endpoint)|key\.pem|keystore\.key|jaas\.config|user\.info"
    r"|(?:api|access|private)[._-]?key$|credentials?$|(?:^|[._-])auth$|kinit\.cmd",
    re.IGNORECASE,
)
# Certificates and lists of ciphers (`ALL:!ADH@STRENGTH`) only look as if a login stood in them.
_NEVER_LOGIN = re.compile(r"\.pem$|cipher", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Written:
    """A text field, cut into its parts; `places` says where each part stands."""

    parts: tuple[Literal | EnvRef | Field, ...]
    places: tuple[Span, ...]
    span: Span
    default: bool = False
    wrong: bool = False  # refused by the schema: rules between fields make nothing of it

    @property
    def plain(self) -> str | None:
        """The text itself when the compiler knows all of it."""
        if all(isinstance(p, Literal) for p in self.parts):
            return "".join(p.text for p in self.parts if isinstance(p, Literal))
        return None


def read_text(
    scalar: Scalar,
    kind: str | None,
    what: str,
    diagnostics: Diagnostics,
    allow_literal_secrets: bool = False,
) -> Written:
    """Cuts a scalar into parts and holds it against the rules of its place (schema `x-dfc`)."""
    assert isinstance(scalar.value, str)
    if kind is None:
        return _literal_only(scalar, what, diagnostics)
    guarded = kind == "secret" and not allow_literal_secrets
    # Whatever stands in a secret's place may be the secret: nothing of it is quoted.
    parts, places = _cut(scalar, kind, Diagnostics() if guarded else diagnostics)
    written = Written(tuple(parts), tuple(places), scalar.span, scalar.default)
    if guarded:
        _check_secret(written, what, diagnostics)
        return written
    for part, place in zip(parts, places, strict=True):
        if isinstance(part, Field):
            _check_field(part, place, kind, what, diagnostics)
    if kind in ("url", "env") and not allow_literal_secrets and _has_password(written, kind):
        diagnostics.error(
            "DFC120",
            scalar.span,
            f"{what} has a password in the file (value not shown)",
            "put the whole value in an environment variable and write `${NAME}` here",
        )
    return written


def is_secret_setting(name: str) -> bool:
    return bool(_SECRET_SETTING.search(name))


def setting_kind(name: str) -> str:
    """The rules (schema `x-dfc`) for the value of a client setting; what it means is not known."""
    if is_secret_setting(name):
        return "secret"
    return "env" if _NEVER_LOGIN.search(name) else "url"


def _literal_only(scalar: Scalar, what: str, diagnostics: Diagnostics) -> Written:
    text = str(scalar.value)
    if (at := text.find("${")) >= 0:
        diagnostics.error(
            "DFC302",
            scalar.span.right(at) if scalar.exact else scalar.span,
            f"{what} is fixed when the job is compiled, so it cannot hold {quote(text[at:])}",
            "write the value out",
        )
    return Written((Literal(text),), (scalar.span,), scalar.span, scalar.default)


def _cut(
    scalar: Scalar, kind: str, diagnostics: Diagnostics
) -> tuple[list[Literal | EnvRef | Field], list[Span]]:
    parts: list[Literal | EnvRef | Field] = []
    places: list[Span] = []
    pieces: list[str] = []  # of the literal that is being read
    began = 0

    def place(offset: int) -> Span:
        return scalar.span.right(offset) if scalar.exact else scalar.span

    def end_literal() -> None:
        if pieces:
            parts.append(Literal("".join(pieces)))
            places.append(place(began))
            pieces.clear()

    for token in _TOKEN.finditer(str(scalar.value)):
        piece, at = token[0], token.start()
        if not piece.startswith("${"):
            began = began if pieces else at
            pieces.append("$" if piece == "$$" else piece)
        elif not piece.endswith("}"):
            diagnostics.error(
                "DFC303",
                place(at),
                "`${` is never closed",
                "write `${…}`, or `$$` for a dollar sign",
            )
            end_literal()
            parts.append(UNKNOWN)
            places.append(place(at))
        else:
            end_literal()
            parts.append(_reference(piece[2:-1], place(at), kind, diagnostics) or UNKNOWN)
            places.append(place(at))
    end_literal()
    return parts or [Literal("")], places or [scalar.span]


def _reference(
    inner: str, span: Span, kind: str, diagnostics: Diagnostics
) -> EnvRef | Field | None:
    if env := _ENV.match(inner):
        return EnvRef(env[1], env[2])
    if _PATH.match(inner):
        path = tuple(inner.split("."))
        if len(path) > MAX_PATH:
            diagnostics.error(
                "DFC304",
                span,
                f"{quote('${' + inner + '}')} goes {len(path)} levels deep; templates go {MAX_PATH}",
                "bring the value up with a processor",
            )
            return None
        return Field(path)
    name = inner.partition(":-")[0]  # a default is never shown: it may hold a password
    if not inner:
        diagnostics.error("DFC305", span, "`${}` names nothing", "write `${source.table}`, say")
    elif _LOOKS_ENV.match(name):
        diagnostics.error(
            "DFC306",
            span,
            f"{quote('${' + name + '}')} is neither an environment variable nor an event field",
            f"environment variables are written in capitals: `${{{name.upper()}}}`",
        )
    else:
        shown = "a reference in this text" if kind in ("url", "secret") else quote(f"${{{name}}}")
        diagnostics.error(
            "DFC307",
            span,
            f"{shown} cannot be read",
            "event fields look like `${source.table}`, environment variables like `${NAME}`; "
            "`$$` is a literal dollar sign",
        )
    return None


def _check_field(field: Field, span: Span, kind: str, what: str, diagnostics: Diagnostics) -> None:
    shown = "${" + ".".join(field.path) + "}"
    if kind == "row_route":
        if field.path[0] in ("before", "after", "source"):
            diagnostics.error(
                "DFC312",
                span,
                f"{what} is about the columns of the outbox row, not the event: {quote(shown)}",
                f"did you mean `${{{field.path[-1]}}}`?",
            )
        return
    if kind == "route":
        if not is_event_field(field.path):
            message = f"{quote(shown)} is not an event field"
            diagnostics.error("DFC310", span, message, suggest(field.path))
        return
    diagnostics.error(
        "DFC301",
        span,
        f"{what} does not route events, so it cannot hold the template {quote(shown)}",
        f"for an environment variable write `${{{'_'.join(field.path).upper()}}}`",
    )


def _check_secret(written: Written, what: str, diagnostics: Diagnostics) -> None:
    match written.parts:
        case (EnvRef(default=None) as reference,) if reference != UNKNOWN:
            return
        case (EnvRef(name=name, default=str()),):
            diagnostics.error(
                "DFC121",
                written.span,
                f"{what} is a secret, and its default stands in the file (value not shown)",
                f"write `${{{name}}}` alone",
            )
        case _:
            diagnostics.error(
                "DFC120",
                written.span,
                f"{what} is a secret in the file (value not shown)",
                "write `${NAME}` and set NAME where the job runs",
            )


def _has_password(written: Written, kind: str) -> bool:
    """True when a literal part or a default carries a password of a URL or key=value string."""
    text = ""
    for part in written.parts:
        match part:
            case Literal(text=piece):
                text += piece
            case EnvRef(default=str(piece)):
                text += piece
            case _:
                text += "\0"
    for piece in _NEXT_URL.split(text):
        if scheme := _SCHEME.match(piece):
            if _in_url(scheme[1].lower(), piece[scheme.end() :]):
                return True
        elif kind == "url" and ((login := _BARE_LOGIN.match(piece)) and _known(login[1])):
            return True
        # Elsewhere `password=` is just text, such as a part of a path.
        if kind == "url" and any(_known(value) for value in _PASSWORD_KEY.findall(piece)):
            return True
    return False


def _in_url(scheme: str, rest: str) -> bool:
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    userinfo, at, _ = authority.rpartition("@")
    if not at:
        # A password with `/` or `?` in it cuts the authority short. Then what looks like the port
        # is none, or an `@` follows in the path.
        port = authority.partition(":")[2]
        path = rest.partition("?")[0]
        if "@" in path or ("@" in rest and not port.isdigit()):
            userinfo = rest.rpartition("@")[0]
    user, colon, password = userinfo.partition(":")
    # redis://:pw@host has an empty user, nats://token@host only the one part.
    return _known(password if colon else "" if scheme.partition("+")[0] in _HAS_USERS else user)


def _known(secret: str) -> bool:
    """Some of it stands in the file."""
    return bool(secret.replace("\0", ""))
