"""The string formats that schemas may name."""

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
"""Formats that are checked; others are ignored, as in Kubernetes. Each pattern matches the whole text."""
