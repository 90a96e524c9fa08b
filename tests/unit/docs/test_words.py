"""The check of words, on pages and code that are written here."""

from docs.words import problems_of_code, problems_of_page


def test_a_banned_word_is_reported_with_its_line_and_the_word_to_use():
    assert list(problems_of_page("# Title\n\nIt is told here.\n")) == [(3, "'told': write say, report, show, know")]


def test_code_on_a_page_is_not_checked():
    page = "Text.\n\n```text\nbeside\n```\n\n    beside\n\nThe option `beside`.\n"
    assert list(problems_of_page(page)) == []


def test_a_long_line_is_reported_unless_it_is_a_table_or_an_address():
    address = f"[link](https://{'a' * 200})"
    assert list(problems_of_page(f"| {'a' * 200} |\n\n{address}\n")) == []
    assert [line for line, _ in problems_of_page(f"\n{'a' * 161}\n")] == [2]


def test_a_sentence_is_counted_over_its_lines_and_ends_with_its_paragraph():
    lines = "\n".join(["one two three four five"] * 10)
    assert [problem[:22] for _, problem in problems_of_page(lines)] == ["a sentence of 50 words"]
    assert list(problems_of_page("- " + "\n- ".join(["one two three four five"] * 10))) == []


def test_strings_of_code_are_checked_and_internal_docstrings_are_not():
    source = 'def f(n):\n    """Rank beside rank."""\n    return f"{n} ranks by turns"\n'
    assert list(problems_of_code(source)) == [(3, "'by turns': write interleaved, alternating")]


def test_the_docstring_of_a_command_is_help():
    source = '@click.command()\ndef f():\n    """Run beside it."""\n'
    assert [line for line, _ in problems_of_code(source)] == [3]
