"""What mkdocs does in addition for the site: pages of the root, links to files, the C header, the nav, docstrings.

Links in the pages are those of the repository, so that the pages read as well there. A link that leaves docs/ leads to
a copy of the file in the site's folder `source`; a link to a folder there becomes its text.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
HEADER = "client-lib/c/include/forebay.h"
# Pages of the root that the site has too.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.DOTALL | re.MULTILINE)

copied: set[str] = set()


def on_config(config: Any) -> Any:
    """Lists the decision records in the nav."""

    def expand(items: list[Any]) -> list[Any]:
        found: list[Any] = []
        for item in items:
            if item == "decisions/*.md":
                found += sorted(f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
            elif isinstance(item, dict):
                found.append(
                    {name: expand(value) if isinstance(value, list) else value for name, value in item.items()}
                )
            else:
                found.append(item)
        return found

    config.nav = expand(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the root."""
    for source, page in PAGES.items():
        # Their links start at the root; in the site they are beside docs/index.md.
        text = LINK.sub(of_root, (ROOT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def of_root(match: re.Match[str]) -> str:
    """A link of a page of the root, as it is from docs/."""
    sign, text, target = match.groups()
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    return f"{sign}[{text}]({posixpath.relpath(posixpath.normpath(target), 'docs')}{'/' * target.endswith('/')})"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Puts the C header's reference in its place, and changes the links that leave docs/."""
    markdown = markdown.replace("<!-- forebay.h -->", header() if "<!-- forebay.h -->" in markdown else "")
    markdown = markdown.replace("<!-- rust -->", rust(page))
    source = page.file.src_uri

    def change(match: re.Match[str]) -> str:
        _, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), path))
        if place.startswith("docs/") and (ROOT / place).is_dir():
            return text if not (ROOT / place / "README.md").exists() else f"[{text}]({path.rstrip('/')}/README.md)"
        if place.startswith("docs/"):
            return match[0]
        if place in PAGES:
            above = posixpath.relpath(PAGES[place], posixpath.dirname(source) or ".")
            return f"[{text}]({above}{'#' + anchor if anchor else ''})"
        if not (ROOT / place).is_file():
            return text
        copied.add(place)
        above = posixpath.relpath(f"source/{place}.txt", posixpath.dirname(page.file.dest_uri) or ".")
        return f'<a href="{above}">{text}</a>'

    # The odd pieces are blocks of code.
    pieces = FENCE.split(markdown)
    return "".join(piece if number % 2 else LINK.sub(change, piece) for number, piece in enumerate(pieces))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Marks the tables of keys, and removes the roles of docstrings, such as ``:class:``, before names."""
    html = re.sub(
        r"<!-- keys: [^>]* -->\s*<table>(.*?)</table>",
        r'<div class="keys"><table>\1</table></div>',
        html,
        flags=re.DOTALL,
    )
    return re.sub(r":(?:attr|class|exc|func|meth|mod):(?=<code>)", "", html)


def of_site(match: re.Match[str]) -> str:
    """A link of a page of the root, as it is from the site's root."""
    sign, text, target = match.groups()
    page = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
    if not page.endswith(".md"):
        copied.add(target)
        return f"{sign}[{text}](source/{target}.txt)"
    place = re.sub(r"README\.md$", "index.md", page)
    return f"{sign}[{text}]({place.removesuffix('.md')}.html)"


def on_post_build(config: Any) -> None:
    """Copies llms.txt, with the site's addresses, and the files of the repository that pages link to."""
    (Path(config.site_dir) / "llms.txt").write_text(LINK.sub(of_site, (ROOT / "llms.txt").read_text()))
    for place in sorted(copied):
        target = Path(config.site_dir) / "source" / f"{place}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / place).read_bytes())


def rust(page: Any) -> str:
    """The link to what `cargo doc` made, where scripts/site makes it."""
    if os.environ.get("FOREBAY_SITE_RUST") != "yes":
        return (
            "This copy of the site was built without it: `cargo doc --no-deps -p forebay-client -p forebay-protocol`."
        )
    above = posixpath.relpath("api/rust", posixpath.dirname(page.file.dest_uri))
    return "\n".join(
        f'- <a href="{above}/{name}/index.html"><code>{name}</code></a>: {words}'
        for name, words in {
            "forebay_client": "attaches to a daemon, hands out batches, copies them to a GPU",
            "forebay_protocol": "frames, rings and layouts that daemon and clients share",
        }.items()
    )


def header() -> str:
    """forebay.h as Markdown: its head, and each section's declarations under their comments."""
    text = (ROOT / HEADER).read_text()
    head, _, body = text.partition("*/\n")
    body = body[body.index("/* ---- ") : body.rindex("#ifdef __cplusplus")]
    return of_head(head) + "\n\n" + "\n\n".join(of_section(part) for part in re.split(r"(?=/\* ---- )", body) if part)


def of_head(comment: str) -> str:
    """The header's first comment: an example, then paragraphs that begin with a word and a full stop."""
    lines = [re.sub(r"^/?\*+ ?| \* ?", "", line, count=1).rstrip() for line in comment.splitlines()]
    text = "\n".join(lines).strip()
    text = re.sub(r"(?m)^((?:    .*\n|\n(?=    ))+)", lambda match: fenced(match[1]), text)
    pieces = FENCE.split(text)
    text = "".join(piece if number % 2 else with_code(piece) for number, piece in enumerate(pieces))
    return re.sub(r"(?m)^(Results|Ownership|Batches|Threads|Forks|Sizes)\. ", r"**\1.** ", text)


def with_code(words: str) -> str:
    """A comment with the names of the header as code."""
    return re.sub(r"(?<![\w`])((?:forebay|FOREBAY)_\w+(?:\(\))?)", r"`\1`", words)


def fenced(code: str) -> str:
    """Indented code as a fenced block."""
    return "```c\n" + re.sub(r"(?m)^    ", "", code.strip("\n")) + "\n```\n"


def of_section(section: str) -> str:
    """A section: its title, then each declaration under its name and the comment before it."""
    title, _, rest = section.partition("*/\n")
    out = [f"## {title.removeprefix('/* ----').strip(' -')}"]
    for comment, code in declarations(rest):
        name = re.search(r"\b(forebay_\w+)\(|^typedef \w+ (forebay_\w+)|^#define (FOREBAY_\w+)", code, re.MULTILINE)
        if name and (comment or code.startswith("typedef")):
            out.append(f"### {next(filter(None, name.groups()))}")
        if comment:
            out.append(with_code(comment))
        out.append(f"```c\n{code}\n```")
    return "\n\n".join(out)


def declarations(text: str) -> Iterator[tuple[str, str]]:
    """Each block of code of a section with the comment above it, or an empty one."""
    comment: list[str] = []
    code: list[str] = []
    depth = 0
    for line in [*text.splitlines(), ""]:
        if not code and (line.startswith(("/*", " *")) or (comment and not comment[-1].endswith("*/"))):
            comment.append(line)
        elif line.strip() or depth > 0:
            code.append(line)
            depth += line.count("{") - line.count("}")
        elif code:
            words = " ".join(re.sub(r"^(/\*| \*) ?|\s*\*/$", "", line) or "\n\n" for line in comment)
            yield words.strip(), "\n".join(code)
            comment, code = [], []
