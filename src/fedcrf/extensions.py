"""Objects from outside the package, by name: rules, attacks, models, data sets and the like.

A name is ``FILE.py:OBJECT``, ``MODULE:OBJECT``, or one that an installed package gives as an entry
point of a group such as ``fedcrf.rules``. A file is looked for from the working directory.

A file is imported as a submodule of this one, under a name that says its path. So another process
finds its classes when a cell is sent to it.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from fedcrf.errors import FedcrfError, in_a_line, unknown_name

T = TypeVar("T")

__path__: list[str] = []
"""Makes this module one that can have submodules; `_Files` finds them."""

_FILE = f"{__name__}.file_"

RUN_BY = ("aggregate", "correct_gradients", "forge", "poison", "build")
"""The methods by which a run uses a rule, an objective, an attack or a model."""


class AbsentError(FedcrfError):
    """The object of a name does not exist, or cannot be imported."""


def is_outside(name: str) -> bool:
    """Return whether a name has the form ``FILE.py:OBJECT`` or ``MODULE:OBJECT``."""
    place, _, thing = name.rpartition(":")
    return bool(place) and thing.isidentifier()


def short_name(name: str) -> str:
    """Return the object's own name of ``FILE.py:OBJECT``; any other name as it is."""
    return name.rpartition(":")[2] if is_outside(name) else name


def find(what: str, name: str, known: Mapping[str, T]) -> T | Any:
    """Return what a name stands for: one of ``known``, of an entry point, or of a place outside.

    ``what`` is a rule, an attack or the like, as errors call it; of a rule the entry points have
    the group ``fedcrf.rules``.

    Raises:
        AbsentError: There is none, or it cannot be imported.
    """
    if name in known:
        return known[name]
    if is_outside(name):
        return _imported(what, name)
    given = installed(what)
    if name not in given:
        raise AbsentError(str(unknown_name(what, name, [*known, *given])))
    try:
        return given[name].load()
    except (Exception, SystemExit) as error:  # whatever the package raises
        raise _broken(what, f"{name} ({given[name].value})", error) from error


def installed(what: str) -> dict[str, EntryPoint]:
    """Return by name the entry points of installed packages; ``what`` is as in `find`."""
    group = f"fedcrf.{what.replace(' ', '_')}s"
    return _entry_points(group, tuple(sys.path))


@cache  # reading what every package says takes milliseconds, and a suite asks a thousand times
def _entry_points(group: str, _path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return a group's entry points of what is installed along a path."""
    return {each.name: each for each in entry_points(group=group)}


def check_class(what: str, name: str, found: object, base: type) -> None:
    """Raise a `FedcrfError` unless what was found is a class of settings, with all methods."""
    mend = f"give a frozen dataclass that derives from {base.__module__}.{base.__name__}"
    if not isinstance(found, type) or not issubclass(found, base):
        raise FedcrfError(f"{what} '{name}' is no {what}: {mend}")
    lacking = sorted(getattr(found, "__abstractmethods__", ()))
    if lacking:
        raise FedcrfError(f"{what} '{name}' lacks {', '.join(lacking)}: give it that method")
    check_settings(what, name, found)


def check_settings(what: str, name: str, found: object) -> None:
    """Raise a `FedcrfError` unless what a name stands for is a class of settings, a dataclass."""
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or _undecorated(found):
        raise FedcrfError(
            f"{what} '{name}' is no class of settings: give a frozen dataclass, with "
            "@dataclass(frozen=True)"
        )


def _undecorated(found: type) -> bool:
    """Tell whether a class has annotations of its own that are no settings, for want of @dataclass.

    `is_dataclass` is true of it, since it derives from one.
    """
    own = vars(found)
    annotations = own.get("__annotations__", {}).values()
    return "__dataclass_fields__" not in own and not all("ClassVar" in str(e) for e in annotations)


@cache
def stand_in(name: str, settings: tuple[tuple[str, Any], ...], base: type) -> type:
    """Return a class of settings in place of one that no longer exists, named ``name``.

    Results made with that class can be read and shown; `RUN_BY` raise an error. The settings of a
    description become its fields and their defaults. The same arguments give the same class, so
    that equal descriptions stay equal.
    """

    def absent(self: object, *_: object, **__: object) -> None:
        raise AbsentError(f"'{name}' is not there any more: install it, or put its file back")

    fields: list[Any] = [(key, Any, dataclasses.field(default=value)) for key, value in settings]
    # Nobody knows what it does now: nothing that it made is stale.
    namespace: dict[str, Any] = {"behaviour": None, **dict.fromkeys(RUN_BY, absent)}
    return dataclasses.make_dataclass(
        short_name(name), fields, bases=(base,), namespace=namespace, frozen=True
    )


def is_stand_in(thing: object) -> bool:
    """Tell whether something is of a class that stands in for one that is gone."""
    return getattr(thing, "behaviour", 1) is None


def _imported(what: str, name: str) -> Any:
    """Return the object of a place outside, whose module is imported: a file's, or a named one."""
    place, _, thing = name.rpartition(":")
    wanted, here = place, str(Path.cwd())
    if place.endswith(".py"):
        path = Path(place)
        with suppress(OSError, RuntimeError, ValueError):  # a loop, no such user, no file's name
            path = path.expanduser().resolve()
        if not os.path.isfile(path):  # False for what is too long to be a path, too
            raise AbsentError(
                f"{what} '{name}': there is no file {place}, looked for from {here}: mend the path"
            )
        wanted = _FILE + os.fsencode(path).hex()
    elif here not in sys.path:
        sys.path.append(here)  # for as long as the process runs: others are started with this path
    try:
        module = importlib.import_module(wanted)
    except (Exception, SystemExit) as error:  # whatever it raises; a script may end the program
        raise _broken(what, name, error) from error
    if not hasattr(module, thing):
        names = [name for name, each in vars(module).items() if _may_serve(name, each, module)]
        raise AbsentError(str(unknown_name(f"{what} in {place}", thing, names)))
    return getattr(module, thing)


def _may_serve(name: str, each: object, module: ModuleType) -> bool:
    """Return whether something in a module may be looked for, and is not merely imported."""
    if name.startswith("_") or isinstance(each, ModuleType):
        return False
    if isinstance(each, type | FunctionType):
        return each.__module__.startswith(module.__name__)
    return type(each).__module__ not in ("typing", "__future__")


def _broken(what: str, name: str, error: BaseException) -> AbsentError:
    return AbsentError(f"{what} '{name}' cannot be imported ({in_a_line(error)})")


class _FileLoader(SourceFileLoader):
    """Runs a file as a script of its folder, which may import its neighbours."""

    def exec_module(self, module: ModuleType) -> None:
        folder = str(Path(self.path).parent)
        sys.path.insert(0, folder)
        try:
            super().exec_module(module)
        finally:
            sys.path.remove(folder)


class _Files:
    """Finds the submodules of this module, whose names say the paths of their files."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(_FILE):
            return None
        file = os.fsdecode(bytes.fromhex(name.removeprefix(_FILE)))
        return spec_from_file_location(name, file, loader=_FileLoader(name, file))


sys.meta_path.append(_Files)
