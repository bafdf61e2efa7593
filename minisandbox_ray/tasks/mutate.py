"""Syntax-tree edits that break a function, each one a small change of a source span.

An operator is a function that looks at one node and yields `(start, end, replacement)` edits in character offsets.
Edits are spliced into the text; the file is never unparsed, so a mutation's diff is as small as the mistake it mimics.
The set follows the operators of mutation testing (Offutt et al., "An experimental determination of sufficient mutant
operators", 1996) and of SWE-smith's procedural bugs (arXiv 2504.21798).
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minisandbox_ray.tasks.source import SourceText, compiles

Edit = tuple[int, int, str]
Operator = Callable[[ast.AST, SourceText], Iterator[Edit]]


@dataclass(frozen=True)
class Mutation:
    """One edit of one file: `text[start:end]`, which is `old`, becomes `new`."""

    path: str
    line: int
    end_line: int
    start: int
    end: int
    old: str
    new: str
    operator: str
    function: str

    def apply(self, text: str) -> str:
        """The mutated text. Raises ValueError if `text` is not what the mutation was made for."""
        if text[self.start : self.end] != self.old:
            raise ValueError(f"{self.path}: the text at line {self.line} is not the one this mutation was made for")
        return text[: self.start] + self.new + text[self.end :]


_COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: (r"\+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: (r"\*", ("//", "/")),
    ast.FloorDiv: ("//", ("*", "%")),
    ast.Div: ("/", ("*",)),
    ast.Mod: ("%", ("//",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: (r"\|", ("&",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
_NAMES = {
    "min": "max",
    "any": "all",
    "startswith": "endswith",
    "lstrip": "rstrip",
    "lower": "upper",
    "find": "rfind",
    "append": "extend",
    "partition": "rpartition",
    "floor": "ceil",
}
_NAMES |= {new: old for old, new in _NAMES.items()}


def _token(source: SourceText, start: int, end: int, pattern: str, new: str) -> Iterator[Edit]:
    """Replaces an operator that stands between two operands, where the gap holds it and brackets or spaces only."""
    match = re.fullmatch(rf"[\s)]*?({pattern})[\s(]*", source.text[start:end])
    if match:
        yield start + match.start(1), start + match.end(1), new


def compare(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """`<` becomes `<=`, `==` becomes `!=`, `in` becomes `not in`, and back."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            pattern, new = _COMPARE[type(op)]
            yield from _token(source, source.span(left)[1], source.span(right)[0], pattern, new)


def arithmetic(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """`+` becomes `-`, `*` becomes `//`, `&` becomes `|`, and back."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        left, right, sign = (
            (node.left, node.right, "") if isinstance(node, ast.BinOp) else (node.target, node.value, "=")
        )
        pattern, replacements = _ARITHMETIC[type(node.op)]
        for new in replacements:
            yield from _token(source, source.span(left)[1], source.span(right)[0], pattern + sign, new + sign)


def boolean(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """The first `and` of a chain becomes `or`, and back (if there is one operator only: else precedence shifts)."""
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        pattern, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _token(source, source.span(node.values[0])[1], source.span(node.values[1])[0], pattern, new)


def constant(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """An integer becomes one more or one less; True becomes False, and back."""
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield *source.span(node), str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int and source.segment(node).isdecimal():
        start, end = source.span(node)
        yield start, end, str(node.value + 1)
        if node.value > 0:
            yield start, end, str(node.value - 1)


def negate(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """A condition of `if`, `while` or `x if c else y` is negated."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        start, end = source.span(test)
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            yield start, start, "not "
        elif isinstance(test, ast.BoolOp):
            yield start, end, f"not ({source.text[start:end]})"


def drop_not(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """`not x` becomes `x`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start = source.span(node)[0]
        yield start, source.span(node.operand)[0], ""


def swap_arguments(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """Two neighbouring positional arguments of a call change places."""
    if isinstance(node, ast.Call) and not any(isinstance(argument, ast.Starred) for argument in node.args):
        for first, second in zip(node.args, node.args[1:], strict=False):
            (start, middle), (resume, end) = source.span(first), source.span(second)
            # Brackets around an argument are outside its span: then swapping the spans would unbalance them.
            if re.fullmatch(r"\s*,\s*", source.text[middle:resume]):
                yield start, end, source.text[resume:end] + source.text[middle:resume] + source.text[start:middle]


def swap_branches(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """`x if c else y` becomes `y if c else x`."""
    if isinstance(node, ast.IfExp):
        (start, middle), (resume, end) = source.span(node.body), source.span(node.orelse)
        yield start, end, source.text[resume:end] + source.text[middle:resume] + source.text[start:middle]


def swap_name(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """A function or method is taken for its opposite: min for max, startswith for endswith."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in _NAMES:
            end = source.span(node.func)[1]
            yield end - len(name), end, _NAMES[name]


def loop_control(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """`break` becomes `continue`, and back."""
    if isinstance(node, ast.Break | ast.Continue):
        yield *source.span(node), "continue" if isinstance(node, ast.Break) else "break"


def drop_branch(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """The body of an `if`, or of its `else`, becomes `pass`."""
    if isinstance(node, ast.If):
        for body in (node.body, node.orelse):
            # An elif is an If inside orelse without lines of its own to replace.
            if body and not source.line(body[0].lineno).lstrip().startswith("elif"):
                yield source.span(body[0])[0], source.span(body[-1])[1], "pass"


def drop_statement(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """An assignment to an attribute or item, an augmented assignment, or a bare call becomes `pass`."""
    stores = isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if stores or calls or isinstance(node, ast.AugAssign):
        assert isinstance(node, ast.stmt)
        yield *source.span(node), "pass"


def drop_operand(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """One operand of `and` / `or` is forgotten."""
    if isinstance(node, ast.BoolOp):
        (_, first_end), (last_start, _) = source.span(node.values[0]), source.span(node.values[-1])
        second_start, end = source.span(node.values[1])[0], source.span(node.values[-2])[1]
        if re.fullmatch(r"\s*(and|or)\s*", source.text[first_end:second_start]):
            yield source.span(node.values[0])[0], second_start, ""
        if re.fullmatch(r"\s*(and|or)\s*", source.text[end:last_start]):
            yield end, source.span(node.values[-1])[1], ""


OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (
        compare,
        arithmetic,
        boolean,
        constant,
        negate,
        drop_not,
        swap_arguments,
        swap_branches,
        swap_name,
        loop_control,
        drop_branch,
        drop_statement,
        drop_operand,
    )
}

INVERTIBLE = [
    *("compare", "boolean", "negate", "drop_not", "arithmetic", "constant"),
    *("swap_name", "swap_branches", "swap_arguments", "loop_control"),
]
"""Operators whose edit another edit of this list takes back: what a fix of one line can be enumerated from."""


def mutations(path: str, text: str, operators: list[str] | None = None) -> list[Mutation]:
    """All mutations of the functions in one file, in order of position. A file that does not parse has none.

    `path` is relative to the repository; `operators` are names from OPERATORS (None: all). f-strings, decorators,
    default arguments and code outside functions are left alone. Whether a mutated text compiles is for the caller to
    ask (`compiles`): it costs as much as everything else together.
    """
    if not compiles(text):
        return []
    source = SourceText(text)
    found: dict[tuple[int, int, str], Mutation] = {}
    for function, node in _nodes(source.tree):
        for name in operators or OPERATORS:
            for start, end, new in OPERATORS[name](node, source):
                old = text[start:end]
                if old != new and (start, end, new) not in found:
                    lines = source.line_of(start), source.line_of(max(start, end - 1))
                    found[start, end, new] = Mutation(path, *lines, start, end, old, new, name, function)
    return sorted(found.values(), key=lambda m: (m.start, m.end, m.operator, m.new))


def _nodes(node: ast.AST, qualified: str = "", inside: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """(qualified name of the function, node) for all nodes that functions execute."""
    if isinstance(node, ast.JoinedStr):
        return  # Before Python 3.12 the positions inside f-strings are wrong.
    if inside:
        yield qualified, node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = f"{qualified}.{node.name}" if qualified else node.name
        for statement in node.body:
            yield from _nodes(statement, name, not isinstance(node, ast.ClassDef))
    else:
        for child in ast.iter_child_nodes(node):
            yield from _nodes(child, qualified, inside)
