"""Markdown and reStructuredText as running text.

Only the marks inside a line are removed, and lines that show nothing are emptied: line 12 of the result is
line 12 of the file, so that a place in the text is a place in the file too.
"""

from __future__ import annotations

import re

# Every run of arbitrary characters between two marks has a limit: texts come from strangers, and a mark that
# is never closed must not be searched for to the end of the text, from each of its copies.
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)(?:---|\.\.\.)\n", re.DOTALL)
_MARKDOWN = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"!\[([^\]\n]{0,300})\]\([^)\n]{0,2000}\)",
        r"\[([^\]\n]{1,300})\](?:\([^)\n]{0,2000}\)|\[[^\]\n]{0,300}\])",
        r"^[ \t]*\[[^\]\n]{1,300}\]:[ \t]*\S.*$()",
        r"</?[a-zA-Z][^<>\n]{0,200}>()",
        r"\*\*(?=\S)([^*\n]+?)\*\*",
        r"(?<!\w)__(?=\S)([^\n]{1,300}?)__(?!\w)",
        r"(?<![\w*])\*(?=[^\s*])([^*\n]+?)\*(?![\w*])",
        r"`{1,2}(?!`)([^`\n]+)`{1,2}(?!`)",
    )
)
_FENCED = re.compile(r"^(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^\1[`~]*+[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN_HEADING = re.compile(
    r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*$|^(\S[^\n]*)\n(?:={3,}|-{3,})[ \t]*$", re.MULTILINE
)


def without_markdown(text: str) -> tuple[str, str]:
    """The title (of the front matter, else the first heading, else "") and the text without marks.

    Blocks of code stay as they are.
    """
    title = ""
    front = _FRONT_MATTER.match(text)
    if front is not None:
        named = re.search(r"^title:[ \t]*(.+)$", front[1], re.MULTILINE)
        title = named[1].strip().strip("\"'") if named else ""
        text = "\n" * front.group().count("\n") + text[front.end() :]
    parts, start = [], 0
    for block in _FENCED.finditer(text):
        parts += [_shown(_without_comments(text[start : block.start()]), _MARKDOWN), block.group()]
        start = block.end()
    text = "".join((*parts, _shown(_without_comments(text[start:]), _MARKDOWN)))
    heading = _MARKDOWN_HEADING.search(text)
    return title or ((heading[1] or heading[2] or "").strip() if heading else ""), text


def _without_comments(text: str) -> str:
    parts, start = [], 0
    while (opened := text.find("<!--", start)) >= 0 and (closed := text.find("-->", opened)) >= 0:
        parts += [text[start:opened], "\n" * text.count("\n", opened, closed)]
        start = closed + 3
    return "".join((*parts, text[start:]))


_ROLES = tuple(
    re.compile(pattern)
    for pattern in (
        # Roles and links show their own words where they have them, else what they name. Without a space
        # before it, `<` is part of a name (CMAKE_<LANG>_FLAGS).
        r":[\w.+-]+(?::[\w.+-]+)?:`([^`<]{1,300}?)\s{1,80}<[^`]{0,500}>`",
        r":[\w.+-]+(?::[\w.+-]+)?:`[~!]?([^`]{1,800})`",
        r"``([^`]+(?:`[^`]+)*)``",
        r"`([^`<]{1,300}?)\s{1,80}<[^`]{0,2000}>`__?",
        r"`([^`]+)`(?:__?)?",
        r"\*\*(?<!\w\*\*)(?=\S)([^*\n]+?)\*\*(?!\w)",
        r"\*(?<![\w*]\*)(?=[^\s*])([^*\n]+?)\*(?![\w*])",
    )
)
# Directives whose line shows nothing of use to a reader of text; what is indented below them stays.
_SILENT = (
    "include|contents|only|program|highlight|index|module|currentmodule|toctree|raw|meta|image|figure"
    "|literalinclude|cmake-module|sectionauthor|moduleauthor|code-block|code|sourcecode|parsed-literal|default-role"
    "|role|tabularcolumns|math|autosummary|automodule"
)
# A line that begins with two dots: a silent directive, a target, a substitution, a change note, any other
# directive (its argument is shown), a footnote (as it is), a comment.
_EXPLICIT = re.compile(
    rf"\.\. (?:(?:{_SILENT})::.*|_.*:.*|\|[^|\n]+\| [\w-]+::.*|((?:version\w+|deprecated)::.*)"
    r"|[\w:.-]+::[ \t]*(.*)|(\[.*)|.*)"
)
_OPTION = re.compile(
    r"^[ \t]+:(?:maxdepth|caption|name|linenos|emphasize-lines|hidden|local|depth|class|glob):.*$()",
    re.MULTILINE,
)
# `name`\ s: the backslash only parts the mark from the letters. |name| stands for a text defined elsewhere.
_PARTED = re.compile(r"(?<=[`|_])\\ ()")
_SUBSTITUTION = re.compile(r"\|([A-Za-z][\w.-]{0,80})\|_{0,2}")
_LITERAL_FOLLOWS = re.compile(r":(:)$", re.MULTILINE)
# A line of one repeated mark underlines the title above it.
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#.:_`])\1{2,}[ \t]*$", re.MULTILINE)
_RST_TITLE = re.compile(r"^(?![ \t.])([^\n]+)\n([=\-~^\"'*+#])\2{2,}[ \t]*$", re.MULTILINE)


def without_rst(text: str) -> tuple[str, str]:
    """The title (the first underlined line, else "") and the text without marks."""
    titles = (found[1].strip() for found in _RST_TITLE.finditer(text))
    title = _shown(next((line for line in titles if re.search(r"\w", line)), ""), _ROLES)
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.lstrip().startswith(".. "):
            explicit = _EXPLICIT.match(line.lstrip())
            lines[i] = next((shown for shown in explicit.groups() if shown), "") if explicit else line
    text = _shown("\n".join(lines), (_OPTION, _PARTED, *_ROLES, _SUBSTITUTION, _LITERAL_FOLLOWS))
    return title, _UNDERLINE.sub("", text)


def _shown(text: str, patterns: tuple[re.Pattern[str], ...]) -> str:
    """`text` with every match replaced by its first group and by as many line breaks as that lacks."""
    for pattern in patterns:
        text = pattern.sub(_shown_of_match, text)
    return text


def _shown_of_match(match: re.Match[str]) -> str:
    shown = match[1]
    return shown + "\n" * (match[0].count("\n") - shown.count("\n"))
