import ast

import pytest

from minisandbox_ray.tasks.mutate import OPERATORS, mutations
from minisandbox_ray.tasks.source import SourceText, compiles, unified_patch

PROGRAM = '''\
# comment: ä < ö
LIMIT = 3


def outer(a, b=1, *rest):
    """Docstring with 1 < 2 and ü."""
    name = "größe"; c = a if (a < b) else max(b, 7)   # ö
    if a <= b and not rest:
        for x in rest:
            if x is not None:
                break
            elif "ä" not in x or f"{a + 1}":
                continue
            else:
                c += 1
    elif a.startswith("ß"): c = (a) + (b)
    else:
        rest.append(b)

    def inner(y=2):
        return outer(y, (a), b) or name[1:]

    while rest:
        rest = rest[1:]
    return c == 4, True


class Thing:
    size = 5

    def method(self):
        self.size = self.size - 1
        return min(self.size, LIMIT)
'''


def texts_of(operator: str, program: str = PROGRAM) -> list[str]:
    return [f"{m.line}: {m.old} -> {m.new}" for m in mutations("p.py", program, [operator])]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_finds_something_that_compiles_and_differs(operator: str) -> None:
    found = mutations("p.py", PROGRAM, [operator])
    assert found
    for mutation in found:
        mutated = mutation.apply(PROGRAM)
        assert compiles(mutated)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(PROGRAM))
        assert mutated == PROGRAM[: mutation.start] + mutation.new + PROGRAM[mutation.end :]


def test_columns_are_characters_not_bytes() -> None:
    assert texts_of("compare")[0] == "7: < -> <="
    assert texts_of("swap_name")[0] == "7: max -> min"
    assert texts_of("swap_branches") == ["7: a if (a < b) else max(b, 7) -> max(b, 7) if (a < b) else a"]


def test_expected_edits() -> None:
    assert texts_of("compare") == [
        "7: < -> <=",
        "8: <= -> <",
        "10: is not -> is",
        "12: not in -> in",
        "25: == -> !=",
    ]
    assert texts_of("boolean") == ["8: and -> or", "12: or -> and", "21: or -> and"]
    assert "15: += -> -=" in texts_of("arithmetic")
    assert "16: + -> -" in texts_of("arithmetic")
    assert texts_of("loop_control") == ["11: break -> continue", "13: continue -> break"]
    assert "8: not  -> " in texts_of("drop_not")
    assert "21: (a), b" not in "".join(texts_of("swap_arguments"))
    assert "33: self.size, LIMIT -> LIMIT, self.size" in texts_of("swap_arguments")
    assert "25: True -> False" in texts_of("constant")


def test_only_functions_are_touched() -> None:
    touched = {mutation.line for mutation in mutations("p.py", PROGRAM)}
    assert not touched & {1, 2, 5, 6, 20, 29}
    assert {m.function for m in mutations("p.py", PROGRAM)} == {"outer", "outer.inner", "Thing.method"}


def test_unparsable_text_has_none() -> None:
    assert mutations("p.py", "print 'python 2'\n") == []


def test_a_mutation_refuses_another_text() -> None:
    mutation = mutations("p.py", PROGRAM, ["compare"])[0]
    with pytest.raises(ValueError, match="not the one"):
        mutation.apply(PROGRAM.replace("größe", "x"))


def test_lines_are_the_tokenizer_s() -> None:
    text = "def f(a):\n    \f\n    s = '\u2028'\r\n    return a < 1\n"
    source = SourceText(text)
    assert source.line(3) == "    s = '\u2028'"
    assert [m.line for m in mutations("p.py", text, ["compare"])] == [4]


def test_patches_keep_line_ends_and_missing_newlines() -> None:
    patch = unified_patch("a/b.py", "x\r\ny", "x\r\nz")
    assert patch == (
        "diff --git a/a/b.py b/a/b.py\n--- a/a/b.py\n+++ b/a/b.py\n@@ -1,2 +1,2 @@\n x\r\n"
        "-y\n\\ No newline at end of file\n+z\n\\ No newline at end of file\n"
    )
    assert unified_patch("p", "same", "same") == ""
