"""The pages of the documentation: their length, the links of every page of the repository, and the site's nav."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LISTED = subprocess.run(
    ["git", "ls-files", "-z", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, check=True
)
PAGES = sorted(ROOT / name for name in LISTED.stdout.decode().split("\0") if name and (ROOT / name).exists())
MOST_LINES = 200


def without_code(text: str) -> str:
    """A page without its blocks of code and the text of its code spans, in which nothing is a link or a heading."""
    text = re.sub(r"^ *```.*?^ *```[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(.+?)\1", lambda match: "`" + "x" * len(match[2]) + "`", text, flags=re.DOTALL)


def links_of(page: Path) -> list[str]:
    """The targets of the page's links and pictures, without URLs."""
    text = without_code(page.read_text(encoding="utf-8"))
    return [target for target in re.findall(r"\]\(([^()\s]+)\)", text) if not re.match(r"[a-z]+:", target)]


def anchors_of(page: Path) -> list[str]:
    """The anchors of the page's headings, as GitHub and the site make them."""
    text = re.sub(r"^ *```.*?^ *```[^\n]*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings]


def mistake_of(page: Path, target: str) -> str | None:
    """What is wrong with a link of a page."""
    path, _, anchor = target.partition("#")
    goal = (page.parent / path).resolve() if path else page
    if not goal.exists():
        return f"{page.relative_to(ROOT)}: {target} does not exist"
    if anchor and goal.suffix == ".md" and anchor not in anchors_of(goal):
        return f"{page.relative_to(ROOT)}: {target} has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    found = [mistake for target in links_of(page) if (mistake := mistake_of(page, target))]
    assert not found, "\n".join(found)


def test_pages_are_short() -> None:
    free = (DOCS / "decisions", DOCS / "found-from-outside.md")
    pages = [
        page for page in PAGES if DOCS in page.parents and not any(other in (page, *page.parents) for other in free)
    ]
    lengths = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    assert len(lengths) > 50
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_headings_of_a_page_have_different_anchors() -> None:
    free = ROOT / "CHANGELOG.md"
    anchors = {page: anchors_of(page) for page in PAGES if page != free}
    assert not {page: names for page, names in anchors.items() if len(set(names)) < len(names)}


def test_every_page_is_in_the_nav_once() -> None:
    names = re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    # Pages that scripts/site_build/hooks.py adds: those of the root, and the records.
    names = [name for name in names if name not in ("changelog.md", "contributing.md", "decisions/*.md")]
    pages = [page.relative_to(DOCS) for page in PAGES if DOCS in page.parents]
    records = [page for page in pages if re.match(r"decisions/\d", str(page))]
    assert sorted(names) == sorted(str(page) for page in pages if page not in records)


def test_pages_that_are_named_outside_links_exist() -> None:
    """Comments, messages and configurations name pages by their paths."""
    pattern = r"docs/[a-z0-9/*-]*\.md"
    command = ["git", "grep", "-ohE", pattern, "--", ".", ":!CHANGELOG.md", ":!scripts/test_docs.py"]
    named = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert named
    assert not [name for name in sorted(set(named)) if not list(ROOT.glob(name))]


def test_packages_that_commands_name_exist() -> None:
    """A command of a script or a page that builds a package of the workspace."""
    listed = subprocess.run(["git", "ls-files", "-z", "*/Cargo.toml"], cwd=ROOT, capture_output=True, check=True)
    manifests = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    packages = set(re.findall(r'^name = "(.+)"$', "".join(path.read_text() for path in manifests), re.MULTILINE))
    command = r"(?:--package[ =]|-p |--package\", \"|\"-p\", \")(forebay[a-z-]*)"
    found = subprocess.run(
        ["git", "grep", "-nE", "(--package|-p)\\b.*forebay", "--", "scripts", "docs", ".ci", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    lines = found.stdout.decode(errors="replace").splitlines()
    named = [(line, name) for line in lines for name in re.findall(command, line)]
    assert len(named) > 20
    assert not [line for line, name in named if name not in packages]
