"""Regular expressions as Go reads them, and the string formats that schemas may name."""

import re
from functools import lru_cache

_POSIX = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\t\n\v\f\r ",
    "word": "a-zA-Z0-9_",
    "xdigit": "0-9a-fA-F",
}


@lru_cache(maxsize=1024)
def go_pattern(text: str) -> str:
    """Translate Go's syntax to Python's; the result is meant for `re.search`.

    Differences that matter: `$` must not match before a final newline, `\\d` and its like are ASCII,
    `\\z` is the end, `[[:alpha:]]` a class. Raises ValueError for what Python cannot express.
    """
    result = ["(?a)"]
    in_class = False
    at = 0
    while at < len(text):
        step = text[at]
        if step == "\\":
            step = text[at : at + 2]
            result.append(r"\Z" if step == r"\z" else step)
        elif in_class and (named := re.match(r"\[:(\w+):\]", text[at:])) and named.group(1) in _POSIX:
            step = named.group(0)
            result.append(_POSIX[named.group(1)])
        else:
            in_class = step == "[" or (in_class and step != "]")
            result.append(r"\Z" if step == "$" and not in_class else step)
            if step == "[" and re.match(r"\[\^?\]", text[at:]):  # a bracket right after [ is a member
                step = text[at : text.index("]", at) + 1]
                result[-1] = step[:-1] + r"\]"
        at += len(step)
    pattern = "".join(result)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"error parsing regexp: {error}: `{text}`") from error
    return pattern


_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_IPV6 = r"(?=[^ ]*:[^ ]*:)[0-9a-fA-F:]{2,39}(?:\.\d{1,3}){0,3}"
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
_LABEL = r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,61}[0-9A-Za-z])?"
_HOST = rf"(?=.{{1,255}}$){_LABEL}(?:\.{_LABEL})*"

FORMAT_PATTERNS = {
    name: rf"(?a)\A(?:{body})\Z"
    for name, body in {
        "date": _DATE,
        "date-time": rf"{_DATE}[Tt ]{_TIME}(?:[Zz]|[+-]\d\d:?\d\d)",
        "byte": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
        "duration": r"(?:\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|m|h|d|w))+|0",
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "ip": rf"{_IPV4}|{_IPV6}",
        "cidr": rf"(?:{_IPV4}/(?:3[0-2]|[12]?\d))|(?:{_IPV6}/(?:12[0-8]|1[01]\d|\d?\d))",
        "email": r"[^@\s]+@[^@\s]+",
        "hostname": _HOST,
        "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*",
        "uuid": r"(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})",
        "mac": r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}",
    }.items()
}
"""Formats that are checked; others, as in Kubernetes, say nothing. Each is a complete pattern."""
