"""What an answer of the receiver means, and when an event that fails is given up."""

import pytest

from pvbus.core.variants.sink.answers import Accepted, Failed, Refused, Trials, answer_of, retry_after

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_accepts(status: int) -> None:
    """Receivers answer with any of them."""
    assert answer_of(status, {}, "", NOW) == Accepted()


@pytest.mark.parametrize("status", [400, 402, 409, 413, 415, 422, 431, 499])
def test_an_answer_about_the_event_refuses_it(status: int) -> None:
    """Sending it again cannot help."""
    assert isinstance(answer_of(status, {}, "", NOW), Refused)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (101, "answers 101"),
        (302, "redirects are not followed"),
        (401, "check the token"),
        (403, "check what the token"),
        (404, "check the path"),
        (405, "must take POST"),
        (407, "proxy"),
        (408, "answers 408"),
        (410, "gone"),
        (425, "answers 425"),
        (429, "answers 429"),
        (500, "answers 500"),
        (503, "answers 503"),
    ],
)
def test_an_answer_about_the_receiver_fails(status: int, words: str) -> None:
    """A wrong address or token would otherwise make a dead letter of every event."""
    answer = answer_of(status, {"Location": "https://elsewhere/"}, "", NOW)
    assert isinstance(answer, Failed)
    assert words in answer.message


def test_messages_have_what_the_receiver_says() -> None:
    """On one line, and not all of it; of a redirect the target."""
    answer = answer_of(422, {}, "no such\n  tenant" + "x" * 5000, NOW)
    assert isinstance(answer, Refused)
    assert answer.message.startswith("the receiver answers 422: no such tenantxxx")
    assert len(answer.message) < 300
    redirect = answer_of(301, {"Location": "https://elsewhere/"}, "moved", NOW)
    assert isinstance(redirect, Failed)
    assert "to https://elsewhere/" in redirect.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("86400", 300.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30.0),
        ("Tue, 14 Nov 2023 21:00:00 GMT", 0.0),
        ("", None),
        ("-5", None),
        ("soon", None),
        ("\N{SUPERSCRIPT TWO}", None),
    ],
)
def test_retry_after(text: str, seconds: float | None) -> None:
    """Seconds or a date, limited; anything else is ignored."""
    assert retry_after(text, NOW) == seconds
    later = answer_of(503, {"Retry-After": text}, "", NOW)
    assert isinstance(later, Failed)
    assert later.retry_after_seconds == seconds


def test_failures_count_only_while_others_are_accepted() -> None:
    """An outage, however long, is no reason to give an event up; nor is one that comes back."""
    trials = Trials(accepted=5)
    assert [trials.count_failure(5) for _ in range(100)] == [0] * 100
    assert trials.count_failure(6) == 1
    assert [trials.count_failure(6) for _ in range(100)] == [1] * 100
    assert trials.count_failure(900) == 2
