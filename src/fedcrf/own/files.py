"""Real sites from files, for a simulation: an NPZ file, or a folder with a file a site.

What the files hold is said in `fedcrf.data.site_files`.
"""

from __future__ import annotations

from pathlib import Path

from fedcrf.data.site_files import read_site_files
from fedcrf.own.sites import Sites, read_sites


def sites_at(path: Path) -> Sites:
    """Return what the sites of a file or a folder hold.

    Raises:
        FedcrfError: There are none, or one does not fit the others.
    """
    return read_sites(read_site_files(path).sites)
