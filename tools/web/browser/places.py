"""Where the tests find their files."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
PCAPS = ROOT / "pcaps"


def page_file():
    """Returns the page that the tests visit: ROCE_PAGE, or what tools/web/build has made."""
    return pathlib.Path(os.environ.get("ROCE_PAGE", ROOT / "target" / "web" / "roce.html")).resolve()
