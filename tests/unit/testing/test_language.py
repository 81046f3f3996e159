"""The check of the documents' language finds the sentences that it bars, in prose alone."""

import pytest

from tests.tools.language import blocks_of, faults_of, message_faults_of, messages_of


@pytest.mark.parametrize(
    "text",
    [
        "Give him a token.",
        "Who can push may write.",
        "Nothing waits. Who has it reads git.",
        "| a | Who can see it sees all |",
        "an end of loops of a reader of topics",
        "the set's variants' drafts",
        "- It ends,\n  as he said.",
        "The plan is of another set.",
        "A condition that is no more, ends.",
        "| a variant owns it no more | delete it |",
        "What it has no more is removed.",
        "the name of the owner of the set",
        "The file is for those who may read it.",
        "It is done. Of a draft, the commit is meant.",
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
        "Of course it is.",
        "It is of use. The end of the list is its last row.",
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


def test_messages_are_the_texts_of_code_but_docstrings() -> None:
    documented = '"""He says who may read it."""\nMAX = 1\n"""Of him alone it is."""\n'
    module = documented + 'say(f"give {x} to him at once")\nkey = "he"\n'
    assert list(messages_of(module)) == [(4, "give `code` to him at once")]
    assert [line for line, _, _ in message_faults_of(module)] == [4]
    assert list(message_faults_of('x = "Who published the revision."')) == []
