"""Replaces secrets in text by `***`: in logs, errors, conditions and events.

It knows secrets by their form: headers with credentials, the login of a URL, parameters and fields with a
secret's name, private keys, tokens of known forms. It does not know values: code that handles a Secret must
not put its content into a message at all. A false match costs a word of a message, a miss publishes a
password, so the patterns are broad. Repeats are bounded, so time is linear in the text.
"""

import re

HIDDEN = "***"

_NAME = (
    r"[\w.-]{0,64}(?:passw(?:or)?d|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|key[_-]data|credentials?|signature|authorization|cookie)"
)
_QUOTE = r"\\{0,3}[\"']"
_QUOTED = r"b?(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?)"
_EXAMPLE = r"(?!\.\.\.|<|\$|\*|'?\"?(?:\.\.\.|<|\$|\*))"
"""Values that messages show as a pattern: `password=...`, `<password>`, `$TOKEN`."""

_HEADERS = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token|private-token|x-gitlab-token"
    r"|x-vault-token|x-amz-security-token"
)
_WORDS = r"(?!tokens?\b|auth\w*|credentials?\b|login|of\b|is\b|or\b|and\b|in\b|that\b|was\b|to\b|from\b)"
"""Words after "bearer" and "basic" in a sentence."""

_NAME_WORDS = (
    "passw",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "key",
    "credential",
    "signature",
    "auth",
    "cookie",
)

_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (
        ("private key",),
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)", re.DOTALL
        ),
        HIDDEN,
    ),
    (  # a header: as a line, a pair of a mapping, or a tuple
        ("auth", "cookie", "x-api-key", "-token"),
        re.compile(
            rf"\b((?:{_HEADERS}){_QUOTE}?[>)]{{0,2}}\s{{0,8}}(?::|={_EXAMPLE}|(?<=[\"'>)]),)\s{{0,8}}+)"
            rf"(?!\*\*\*)(?:{_QUOTED}|[^\r\n]*)",
            re.IGNORECASE,
        ),
        rf"\g<1>{HIDDEN}",
    ),
    (
        ("bearer", "basic"),
        re.compile(rf"\b(bearer|basic)(\s{{1,8}}){_WORDS}(?!\.\.\.|<)[^\s\"',;)}}\]>]{{3,}}", re.IGNORECASE),
        rf"\1\2{HIDDEN}",
    ),
    (  # the login of a URL; that of ssh is a name, and stays if it has no password
        ("@",),
        re.compile(
            r"((?<!ssh:)//)[^\s/?#\"'@]{1,1024}@|(//)[^\s/?#\"'@:]{0,256}:(?!\d{1,5}(?:/|$))[^\s\"'@]{0,1024}@"
        ),
        rf"\1\2{HIDDEN}@",
    ),
    (  # a parameter
        ("=",),
        re.compile(
            rf"\b({_NAME}\s{{0,2}}=\s{{0,2}}){_EXAMPLE}(?:{_QUOTED}|[^\s&\"',;)}}\]]+)",
            re.IGNORECASE,
        ),
        rf"\g<1>{HIDDEN}",
    ),
    (  # a field of JSON, or of a Python mapping
        _NAME_WORDS,
        re.compile(
            rf"({_QUOTE}{_NAME}{_QUOTE}\s{{0,8}}:\s{{0,8}})"
            rf"(?:\\{{1,3}}\"[^\"]*\"?|{_QUOTED}|[^\s,}}\]\"']+)",
            re.IGNORECASE,
        ),
        rf'\g<1>"{HIDDEN}"',
    ),
    (  # a field of YAML
        _NAME_WORDS,
        re.compile(
            rf"^([ \t-]{{0,200}}(?!PVBUS_){_NAME}[ \t]{{0,8}}:[ \t]{{1,8}})[^\s].*$",
            re.IGNORECASE | re.MULTILINE,
        ),
        rf"\g<1>{HIDDEN}",
    ),
    (  # tokens of known forms: JWT, GitHub, GitLab, Slack, AWS
        ("eyj", "gh", "glpat-", "xox", "akia"),
        re.compile(
            r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|AKIA)[\w-]{8,}"
        ),
        HIDDEN,
    ),
)
"""Words of which one must be in the text in lower case (a search for a word is much faster than a pattern),
the pattern, and its replacement."""

_SECRET_DATA = re.compile(rf"({_QUOTE}(?:data|stringData){_QUOTE}\s{{0,8}}:\s{{0,8}}){{[^}}]*}}?")
_SECRET_KIND = re.compile(rf"kind{_QUOTE}\s{{0,8}}:\s{{0,8}}{_QUOTE}Secret\b")

_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Return a text with each secret replaced."""
    lower = text.lower()
    if "secret" in lower and _SECRET_KIND.search(text):
        text = _SECRET_DATA.sub(rf'\g<1>"{HIDDEN}"', text)
    for words, pattern, replacement in _RULES:
        if any(word in lower for word in words):
            text = pattern.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Return whether a field or header with this name holds a secret."""
    return _SECRET_NAME.fullmatch(name) is not None
