"""The check of the documents' language finds the sentences that it bars, in prose alone."""

import pytest

from tests.tools.language import blocks_of, faults_of


@pytest.mark.parametrize(
    "text",
    [
        "Give him a token.",
        "Who can push may write.",
        "Nothing waits. Who has it reads git.",
        "| a | Who may see it sees all |",
        "the end of the loop of the reader of topics",
        "the set's variants' drafts",
        "- It ends,\n  as he said.",
        "The plan is of another set.",
        "A condition that is no more, ends.",
        "| a variant owns it no more | delete it |",
        "What it has no more is removed.",
    ],
)
def test_a_sentence_is_found(text: str) -> None:
    assert len(list(faults_of(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "## Who may see it",
        "**Who approves.** The server says so.",
        "Anyone who can push can write.",
        "Who approves? The server says so.",
        "```sh\necho he\n```",
        "    he = 1",
        "It is `his` name.",
        "the end of the list of topics",
        "the set's drafts",
        "The field is of type text.",
        "There are no more than two, and no more memory.",
    ],
)
def test_good_sentences_code_and_headings_are_left_alone(text: str) -> None:
    assert list(faults_of(text)) == []


def test_a_paragraph_is_one_line_and_an_item_another() -> None:
    found = list(blocks_of("One\ntwo.\n\n- three\n  four\n- five"))
    assert [(each.line, each.text) for each in found] == [(1, "One two."), (4, "three four"), (6, "five")]
