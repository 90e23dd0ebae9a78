"""The snippets of the docs that are marked `<!-- test: ... -->` are run, page by page, in one folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNIPPET = re.compile(r"<!-- test: (bash|python) -->\n```\1\n(.*?)```", re.DOTALL)
PAGES = sorted(
    page for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if SNIPPET.search(page.read_text())
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_marked_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for language, snippet in SNIPPET.findall(page.read_text()):
        command = ["bash", "-ec", snippet] if language == "bash" else [sys.executable, "-c", snippet]
        path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_python_snippet_compiles() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            compile(snippet, page.name, "exec")
