"""Where the tests find their files."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]


def captures():
    """Returns all captures of the repository, and those beside it if they are there."""
    found = []
    for folder in [ROOT / "pcaps", ROOT.parent / "shared" / "pcaps"]:
        found += [path for path in sorted(folder.rglob("*")) if path.name.removesuffix(".gz").endswith((".pcap", ".pcapng"))]
    return found
