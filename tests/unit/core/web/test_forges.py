"""Links to git at the usual forges; nothing else of an address becomes a link."""

import pytest

from pvbus.core.web.forges import Links, links_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("address", "commit", "folder"),
    [
        (
            "https://github.com/org/repo.git",
            "github.com/org/repo/commit/",
            "github.com/org/repo/tree/{}/a/web",
        ),
        ("git@github.com:org/repo.git", "github.com/org/repo/commit/", "github.com/org/repo/tree/{}/a/web"),
        (
            "ssh://git@gitlab.example.org:2222/g/sub/repo",
            "gitlab.example.org/g/sub/repo/-/commit/",
            "gitlab.example.org/g/sub/repo/-/tree/{}/a/web",
        ),
        (
            "https://me:secret@gitea.example.org:3000/o/r",
            "gitea.example.org:3000/o/r/commit/",
            "gitea.example.org:3000/o/r/src/commit/{}/a/web",
        ),
        ("https://bitbucket.org/o/r.git", "bitbucket.org/o/r/commits/", "bitbucket.org/o/r/src/{}/a/web"),
    ],
)
def test_a_commit_and_its_folder_have_pages(address: str, commit: str, folder: str) -> None:
    """Over https, without login, and with the port of https only."""
    wanted = Links(f"https://{commit}{COMMIT}", f"https://{folder.format(COMMIT)}")
    assert links_of(address, COMMIT, "a/web") == wanted


@pytest.mark.parametrize(
    ("address", "commit"),
    [
        ("/srv/git/github.git", COMMIT),
        ("file:///srv/github/repo.git", COMMIT),
        ("https://git.example.org/o/r", COMMIT),
        ("javascript://github.com/%0aalert(1)", COMMIT),
        ("https://github.com", COMMIT),
        ("https://github.com:port/o/r", COMMIT),
        ("https://github.com/o/r", ""),
        ("https://github.com/o/r", "main?x=1#"),
        ("https://git<b>.github.com/o/r", COMMIT),
    ],
)
def test_what_is_no_repository_of_a_forge_has_none(address: str, commit: str) -> None:
    assert links_of(address, commit, "web") is None


def test_a_hostile_path_stays_within_the_address() -> None:
    links = links_of('https://github.com/o/r"><script>', COMMIT, "../../x?y#z")
    assert links is not None
    assert not set('"<>?#') & set("".join(links))
