"""The part of Dockerfiles that needs no container: FROM a Python, Debian or Ubuntu image; RUN, COPY, ENV, WORKDIR.

Syntax as in Docker's Dockerfile reference: comments, continued lines, here-documents of RUN, exec and shell forms,
variables in ENV, WORKDIR and COPY.
"""

import json
import posixpath
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from minisandbox_ray.environments.machine import DOCKER_PATH
from minisandbox_ray.tasks.datasets.row import BadRowError, shown
from minisandbox_ray.tasks.scripted import Instruction

_IMAGE = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?P<name>[a-z0-9._/-]+?)(?::(?P<tag>[A-Za-z0-9_.-]+))?(?:@sha256:[0-9a-f]{64})?"
)
_PYTHON_TAG = re.compile(r"(?P<version>3\.\d+(?:\.\d+)?)(?:-(?:slim|[a-z]+|slim-[a-z]+))?")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_VARIABLE = re.compile(
    r"\\(?P<escaped>.)|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?::(?P<sign>[-+])(?P<word>[^}]*))?\})"
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a Dockerfile says."""

    base: str
    """Image, as in "python:3.12-slim"."""
    python: str
    """Interpreter version of a python image, else ""."""
    instructions: list[Instruction]
    workdir: str
    variables: dict[str, str]


def read_dockerfile(path: Path) -> Recipe:
    """Read a Dockerfile whose context is its directory. Raises BadRowError that names the line and what is beyond."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRowError(f"environment/{path.name}", f"cannot be read: {error}") from error
    return _Reader(path).read(text)


def parse_image(image: str) -> tuple[str, str]:
    """(name and tag, interpreter version or "") of a Python, Debian or Ubuntu image. Raises ValueError for others."""
    match = _IMAGE.fullmatch(image)
    name, tag = (match["name"], match["tag"] or "latest") if match else ("", "")
    if name == "python":
        version = _PYTHON_TAG.fullmatch(tag)
        if version is None or "alpine" in tag or "windows" in tag:
            raise ValueError(f"image {image}: only Debian's, with a version, as in python:3.12-slim")
        return f"python:{tag}", version["version"]
    if name not in {"debian", "ubuntu"}:
        raise ValueError(f"image {image} is none of python:3.X, debian, ubuntu")
    return f"{name}:{tag}", ""


class _Reader:
    def __init__(self, path: Path) -> None:
        self._context = path.parent
        self._field = f"environment/{path.name}"
        self._number = 0
        self._base: tuple[str, str] | None = None
        self._instructions: list[Instruction] = []
        self._workdir = "/"
        self._variables: dict[str, str] = {}

    def read(self, text: str) -> Recipe:
        if re.match(r"\s*#\s*escape\s*=", text):
            raise self._bad("another escape character than the backslash")
        lines = text.splitlines()
        at = 0
        while at < len(lines):
            self._number = at + 1
            line, at = _logical_line(lines, at)
            if not line:
                continue
            keyword, _, rest = line.partition(" ")
            keyword, rest, bodies = keyword.upper(), rest.strip(), []
            for _, end in _HEREDOC.findall(rest) if keyword in {"RUN", "COPY", "ADD"} else []:
                body = []
                while at < len(lines) and lines[at].strip("\t") != end:
                    body.append(lines[at])
                    at += 1
                if at == len(lines):
                    raise self._bad(f"here-document {end} does not end")
                bodies.append([*body, end])
                at += 1
            self._instruction(keyword, rest, bodies)
        if self._base is None:
            raise BadRowError(self._field, "has no FROM")
        return Recipe(*self._base, self._instructions, self._workdir, self._variables)

    def _instruction(self, keyword: str, rest: str, bodies: list[list[str]]) -> None:
        if keyword == "FROM":
            return self._from(rest)
        if self._base is None:
            raise self._bad(f"{keyword} before FROM")
        if not rest:
            raise self._bad(f"{keyword} of nothing")
        if keyword == "RUN":
            return self._run(rest, bodies)
        if keyword == "COPY":
            return self._copy(rest, bodies)
        if keyword == "ENV":
            return self._env(rest)
        if keyword == "WORKDIR":
            self._workdir = posixpath.normpath(posixpath.join(self._workdir, self._expand(_unquote(rest))))
            return None
        raise self._bad(f"{shown(keyword)} is beyond FROM, RUN, COPY, ENV and WORKDIR")

    def _from(self, rest: str) -> None:
        if self._base is not None:
            raise self._bad("a second FROM: builds of several stages are beyond us")
        words = [word for word in rest.split() if not word.startswith("--platform=")]
        if len(words) == 3 and words[1].upper() == "AS":
            words = words[:1]
        if len(words) != 1:
            raise self._bad(f"FROM {rest}: not an image")
        try:
            self._base = parse_image(words[0])
        except ValueError as error:
            raise self._bad(str(error)) from error

    def _run(self, rest: str, bodies: list[list[str]]) -> None:
        if rest.startswith("--"):
            raise self._bad(f"RUN {rest.split(maxsplit=1)[0]}: options of RUN are beyond us")
        command = rest
        if bodies and _HEREDOC.fullmatch(rest):
            command = "\n".join(bodies[0][:-1])
            if command.startswith("#!"):
                raise self._bad("a here-document for another interpreter than the shell")
        elif bodies:
            command = "\n".join([rest, *("\n".join(body) for body in bodies)])
        elif (words := _exec_form(rest)) is not None:
            command = shlex.join(words)
        self._add(Instruction(kind="run", command=command, workdir=self._workdir, variables=dict(self._variables)))

    def _copy(self, rest: str, bodies: list[list[str]]) -> None:
        if rest.startswith("--") or bodies:
            raise self._bad(f"COPY {rest.split(maxsplit=1)[0]}: options and here-documents of COPY are beyond us")
        words = _exec_form(rest)
        if words is None:
            words = [_unquote(word) for word in rest.split()]
        words = [self._expand(word) for word in words]
        if len(words) < 2:
            raise self._bad(f"COPY {rest}: source and target are needed")
        if (self._context / ".dockerignore").exists():
            raise self._bad("COPY with a .dockerignore is beyond us")
        *wanted, target = words
        sources = [found for word in wanted for found in self._sources(word)]
        folder = target.endswith("/") or target in {".", "..", ""} or target.endswith(("/.", "/.."))
        if len(sources) > 1 and not folder:
            raise self._bad(f"COPY {rest}: several sources want a target that ends in a slash")
        place = posixpath.normpath(posixpath.join(self._workdir, target))
        if folder and place != "/":
            place += "/"
        self._add(
            Instruction(
                kind="copy", sources=sources, target=place, workdir=self._workdir, variables=dict(self._variables)
            )
        )

    def _sources(self, word: str) -> list[str]:
        relative = posixpath.normpath(word.lstrip("/"))
        if relative.startswith("../") or relative == "..":
            raise self._bad(f"COPY {word}: outside of environment/")
        found = [relative]
        if relative != ".":
            found = sorted(str(path.relative_to(self._context)) for path in self._context.glob(relative))
        if not found:
            raise self._bad(f"COPY {word}: there is no such file in environment/")
        context = self._context.resolve()
        for each in found:
            if not (context / each).resolve().is_relative_to(context):
                raise self._bad(f"COPY {word}: leads outside of environment/")
        return found

    def _env(self, rest: str) -> None:
        first = rest.split(maxsplit=1)[0]
        if "=" not in first:  # the old form: ENV NAME the whole rest
            name, _, value = rest.partition(" ")
            pairs = [(name, value.strip())]
        else:
            pairs = [(name, value) for name, _, value in (word.partition("=") for word in self._words(rest))]
        before = dict(self._variables)
        for name, value in pairs:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise self._bad(f"ENV {name}: not a name of a variable")
            self._variables[name] = self._expand(value, before)

    def _words(self, rest: str) -> list[str]:
        """Split at spaces outside of quotes; quotes go, what single quotes or backslashes protect stays protected."""
        words: list[str] = [""]
        quote = ""
        characters = iter(rest)
        for character in characters:
            if character == "\\" and quote != "'":
                following = next(characters, "")
                plain = quote and following not in '"$\\'  # then the backslash stays
                words[-1] += "\\\\" + following if plain else "\\" + following
            elif quote:
                if character == quote:
                    quote = ""
                else:
                    words[-1] += "\\" + character if quote == "'" and character in "\\$" else character
            elif character in "'\"":
                quote = character
            elif character.isspace():
                words += [""] if words[-1] else []
            else:
                words[-1] += character
        if quote:
            raise self._bad("a quote that does not end")
        return [word for word in words if word]

    def _expand(self, text: str, variables: dict[str, str] | None = None) -> str:
        known = {"PATH": DOCKER_PATH, **(self._variables if variables is None else variables)}

        def value(match: re.Match[str]) -> str:
            if match["escaped"]:
                return match["escaped"]
            found = known.get(match["plain"] or match["name"], "")
            if match["sign"] == "-":
                return found or match["word"]
            if match["sign"] == "+":
                return match["word"] if found else ""
            return found

        return _VARIABLE.sub(value, text)

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def _bad(self, reason: str) -> BadRowError:
        return BadRowError(self._field, f"line {self._number}: {reason}")


def _logical_line(lines: list[str], at: int) -> tuple[str, int]:
    """A line with those that continue it, without comments; and where the next one begins."""
    parts: list[str] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        stripped = line.strip()
        if stripped.startswith("#") or (parts and not stripped):
            continue  # between continued lines, too
        if re.search(r"\\\s*$", line):
            parts.append(line.rstrip()[:-1])
            continue
        parts.append(line)
        break
    return "".join(parts).strip(), at


def _exec_form(rest: str) -> list[str] | None:
    """The words of the JSON form, None for the other."""
    if not rest.startswith("["):
        return None
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    return words if isinstance(words, list) and words and all(isinstance(word, str) for word in words) else None


def _unquote(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
