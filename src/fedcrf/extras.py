"""Packages of extras, and the error that names the extra of a missing one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from fedcrf.errors import FedcrfError

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
}
"""Packages that are not imported by the name under which they are installed."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*extra == ['\"](?P<extra>[\w-]+)['\"]")


def check_installed(package: str, wanted_by: str = "") -> None:
    """Raise a `FedcrfError` where a package is not installed; ``wanted_by`` begins its message."""
    if find_spec(package) is None:
        raise FedcrfError(f"{wanted_by}{mend(ModuleNotFoundError(name=package))}")


@contextmanager
def naming_extras() -> Iterator[None]:
    """Let an import that fails for want of a package name the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "fedcrf":
            raise
        raise ModuleNotFoundError(mend(missing), name=missing.name) from None


def mend(missing: ModuleNotFoundError) -> str:
    """Return the line that names a package that cannot be imported, and how to install it."""
    package = (missing.name or "").partition(".")[0]
    installed_as = _normalised(_DISTRIBUTIONS.get(package, package))
    try:
        required = requires("fedcrf") or []
    except PackageNotFoundError:  # the package is not installed itself, but on the path
        required = []
    found = map(_REQUIREMENT.match, required)
    extras = [each["extra"] for each in found if each and _normalised(each["name"]) == installed_as]
    wanted = f"fedcrf[{extras[0]}]" if extras else installed_as or "fedcrf[all]"
    return f"{package or missing} is not installed: pip install '{wanted}'"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
