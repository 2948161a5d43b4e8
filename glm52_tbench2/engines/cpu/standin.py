"""Stand-ins for packages that SGLang imports and, on a CPU, never calls.

A stand-in answers every import and every attribute with another one of itself. As a decorator it
leaves the function as it is, so a Triton kernel stays a plain function: launching it, as in
`kernel[grid](...)`, raises TypeError.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class _StandInType(type):
    """Classes whose missing attributes exist: `tl.constexpr`, `triton.Config.Whatever`."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__module__}.{cls.__qualname__}.{name}"


class _StandInObject(metaclass=_StandInType):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _StandInModule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, _FINDER, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any
        if name.endswith("Error"):
            made = type(name, (Exception,), {"__module__": self.__name__})
        elif name[0].isupper():
            made = _StandInType(name, (_StandInObject,), {"__module__": self.__name__})
        else:
            path = f"{self.__name__}.{name}"
            made = sys.modules.setdefault(path, _StandInModule(path))
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`@jit` returns the function; `@jit(...)` returns a decorator that does."""
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return lambda function: function


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any submodule of an installed stand-in."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, dot, _ = fullname.partition(".")
        if not dot or package not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_FINDER = _Finder()


def install(name: str, file: str, **attributes: Any) -> None:
    """Puts a stand-in in the place of the package that calls this from its `__init__.py`.

    `attributes` are the few names whose value SGLang does use while it is imported.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.packages.add(name)
    module = _StandInModule(name)
    module.__file__ = file
    module.__dict__.update(attributes)
    sys.modules[name] = module


def refuse(package: str) -> Callable[[str], Any]:
    """A module's `__getattr__`: every name imports, and calling one raises NotImplementedError."""

    def getattribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{package}.{name} is a GPU kernel")

        return missing

    return getattribute
