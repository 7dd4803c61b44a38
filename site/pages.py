"""What the site has beside docs/: README.md as its first page, the other documents, and a page for each file or folder of
the checkout that a document links to. The order of the pages is that of the links in the README."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
#: The languages that the highlighter knows by another name than the file's suffix.
LANGUAGES = {"h": "c", "cc": "cpp", "hpp": "cpp", "py": "python", "rs": "rust", "sh": "bash", "txt": "text"}
LINK = re.compile(r"(?<=\]\()([^)#\s]+)((?:#[^)\s]*)?)(?=\))")


def place(path):
    """Where a file or folder of the checkout lies on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path[len("docs/"):]
    return path if path.endswith(".md") and "/" not in path else f"files/{path}.md"


def links(text, folder):
    """The files and folders of the checkout that a document in ``folder`` links to."""
    found = []
    for target, _ in LINK.findall(text):
        if "://" not in target:
            found.append(os.path.normpath(os.path.join(folder, target)))
    return found


def moved(text, folder, own):
    """A document whose links lead to the places on the site; ``own`` is its place."""

    def rewritten(match):
        target, anchor = match.groups()
        if "://" in target:
            return match.group(0)
        path = os.path.normpath(os.path.join(folder, target))
        return os.path.relpath(place(path), os.path.dirname(own) or ".") + anchor

    return LINK.sub(rewritten, text)


def page(path):
    """The text of the page of a file or folder."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(entry.name for entry in full.iterdir() if entry.is_file())
        return f"# {path}\n\n" + "".join(f"- [{name}]({full.name}/{name}.md)\n" for name in names)
    if full.suffix == ".md":
        return moved(full.read_text(), os.path.dirname(path), place(path))
    language = LANGUAGES.get(full.suffix[1:], full.suffix[1:] or "text")
    # What a source says would hide the documents in the results of a search.
    head = "---\nsearch: {exclude: true}\n---\n"
    return f"{head}# {path}\n\n````{language}\n{full.read_text()}\n````\n"


def on_config(config):
    """The pages in the order of the README's links, under their words."""
    text = (ROOT / "README.md").read_text().split("## Documentation")[1]
    languages, questions = text.split("By question:")
    sections = {"Languages": languages, "Questions": questions}
    config.nav = [{"First steps": "index.md"}]
    for name, part in sections.items():
        pages = re.findall(r"\[([^\]]+)\]\((docs/[^)#]+\.md)\)", part)
        config.nav.append({name: [{words[0].upper() + words[1:].replace("\n", " "): place(path)} for words, path in pages]})
    config.nav.append({"Project": ["CONTRIBUTING.md", "CHANGELOG.md"]})
    return config


def on_files(files, config):
    """Adds the pages that are not in docs/, following links until no new file is named."""
    files.append(File.generated(config, "site.css", content=(ROOT / "site/site.css").read_text()))
    waiting = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    for entry in sorted((ROOT / "docs").glob("*.md")):
        waiting += links(entry.read_text(), "docs")
    seen = set()
    while waiting:
        path = waiting.pop()
        if path in seen or path.startswith("docs/"):
            continue
        seen.add(path)
        full = ROOT / path
        if full.is_dir():
            waiting += (f"{path}/{entry.name}" for entry in full.iterdir() if entry.is_file())
        elif full.suffix == ".md":
            waiting += links(full.read_text(), os.path.dirname(path))
        files.append(File.generated(config, place(path), content=page(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Leads the links of the pages in docs/ to the places on the site."""
    if page.file.generated_by is None:
        return moved(markdown, "docs", page.file.src_uri)
    return markdown
