"""axe-core (https://github.com/dequelabs/axe-core) in a page: what breaks WCAG 2, levels A and AA.

The script comes in a package from PyPI, locked with its hash; the package's own Python is not used.
"""

from importlib.metadata import distribution
from pathlib import Path

from tests.tools.browser import Browser

PACKAGE = "axe-playwright-python"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
_RUN = (
    "const done = arguments[arguments.length - 1];"
    "axe.run(document, {runOnly: {type: 'tag', values: arguments[0]}, resultTypes: ['violations']})"
    ".then((found) => done(found.violations.flatMap((rule) => rule.nodes.map((node) =>"
    "`${rule.id}: ${node.target.join(' ')}: ${node.failureSummary}`))), (error) => done([String(error)]))"
)


def violations(page: Browser) -> list[str]:
    """Return each element of the page as it is now that breaks a rule: the rule, its selector, and why."""
    if not page.run("return Boolean(window.axe)"):
        script = distribution(PACKAGE).locate_file("axe_playwright_python/axe.min.js")
        page.run(Path(str(script)).read_text(encoding="utf-8"))
    return list(page.run_async(_RUN, TAGS))
