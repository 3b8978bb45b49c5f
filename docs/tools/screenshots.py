"""Pages as pictures: light, dark and 600 px wide. `make screenshots`.

    pip install playwright markdown-it-py && playwright install chromium
    python -m docs.tools.screenshots [FILE.html ...]

Needs the built documentation (`make docs`), and playwright with its Chromium or one on PATH. Writes
docs/_build/pictures/PAGE-LOOK.png, and says which elements are wider than the page. Status 1 if one
is.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs" / "_build" / "html"
PICTURES = ROOT / "docs" / "_build" / "pictures"
PAGES = {
    "home": BUILT / "index.html",
    "get_started": BUILT / "get_started.html",
    "recipe": BUILT / "recipes" / "hstu.html",
    "gallery": BUILT / "gallery.html",
    "benchmarks": BUILT / "benchmarks.html",
    "reasons": BUILT / "reasons.html",
    "api": BUILT / "api.html",
}
# README as a repository's page shows it, more or less.
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
pre { white-space: pre-wrap; padding: 1rem; background: #7d859022; font-size: 85%; }
table { border-collapse: collapse; display: block; overflow: auto; }
td, th { border: 1px solid #7d859055; padding: .3rem .7rem; }
img { max-width: 100%; } @media (prefers-color-scheme: dark) { body { background: #0d1117; } }
"""
TOO_WIDE = """() => {
  const page = document.documentElement.clientWidth, found = [];
  for (const e of document.querySelectorAll('main *, article *, body > *, body > * > *')) {
    const scrolls = ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
    const cut = scrolls && e.scrollWidth > e.clientWidth + 1;
    if (cut || e.getBoundingClientRect().right > page + 1)
      found.push(e.tagName + ' ' + (e.innerText || '').slice(0, 60).replaceAll('\\n', ' '));
  }
  return found.slice(0, 8);
}"""


@dataclass(frozen=True)
class Look:
    name: str
    scheme: str
    width: int


LOOKS = (Look("light", "light", 1280), Look("dark", "dark", 1280), Look("narrow", "light", 600))


def readme() -> Path:
    """README.md as a page of its own."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text())
    body = body.replace('src="docs/', f'src="{ROOT.as_uri()}/docs/')
    path = PICTURES / "readme.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{body}')
    return path


def photograph(browser: Any, name: str, page: Path, look: Look) -> list[str]:
    """Writes a picture of the whole page; returns what is wider than the window."""
    context = browser.new_context(
        color_scheme=look.scheme, viewport={"width": look.width, "height": 900}
    )
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    tab.screenshot(path=PICTURES / f"{name}-{look.name}.png", full_page=True)
    wide: list[str] = tab.evaluate(TOO_WIDE)
    context.close()
    return wide


def main(more: list[str]) -> int:
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    pages = {"readme": readme(), **PAGES, **{Path(file).stem: Path(file) for file in more}}
    faults = 0
    with sync_playwright() as playwright:
        own = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=own)
        for name, page in pages.items():
            for look in LOOKS:
                wide = photograph(browser, name, page, look)
                faults += bool(wide)
                print(f"{name}-{look.name}", *(f"\n  too wide: {element}" for element in wide))
        browser.close()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
