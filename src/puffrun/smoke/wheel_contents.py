"""What a wheel's own sources need and the wheel lacks: no import, only reading. Pure."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_FOR_A_PATH = {"sitecustomize.py", "usercustomize.py"}  # put on sys.path, never in a package
MIN_DOTTED = 3  # a text such as `package.part.module` names a module; `package.toml` does not


@dataclass(frozen=True)
class MissingModule:
    """A module that some file of the wheel needs, with the place where it is named."""

    name: str
    needed_by: str
    line: int


def find_missing_modules(sources: Mapping[str, str]) -> tuple[MissingModule, ...]:
    """Find modules of the wheel's own packages that are named and not there, each once.

    Sees `import` and `from … import` wherever they stand, also in functions, and dotted names in
    texts whose package is there (tables of commands, lazy imports).
    """
    here = _Contents(sources)
    missing: dict[str, MissingModule] = {}
    for path in sorted(sources):
        try:
            tree = ast.parse(sources[path])
        except SyntaxError:
            continue  # the import of everything will say so
        for name, line in here.find_needs(path, tree):
            missing.setdefault(name, MissingModule(name, path, line))
    return tuple(missing.values())


def find_missing_inits(paths: Iterable[str], package: str) -> tuple[str, ...]:
    """Find the `__init__.py` files that directories with modules lack, each once, in order.

    Such a directory is imported as a namespace, without what its `__init__.py` did. Above the first
    package of a path it may be one on purpose, unless it bears the name of the wheel's own package.
    """
    present = {path for path in paths if path.endswith(".py")}
    missing = set()
    for path in present:
        *parents, last = path.split("/")
        parents = [] if last in _FOR_A_PATH else parents
        is_inside = parents[:1] == [package]
        for count in range(1, len(parents) + 1):
            if not parents[count - 1].isidentifier():
                break  # no import reaches what is below
            init = "/".join([*parents[:count], "__init__.py"])
            if init in present:
                is_inside = True
            elif is_inside:
                missing.add(init)
    return tuple(sorted(missing))


class _Contents:
    """The modules of a wheel, and what their packages define."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._modules = {_module_name(path) for path in sources}
        self._roots = {name for name in self._modules if "." not in name}
        self._defined: dict[str, set[str]] = {}

    def find_needs(self, path: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
        """Find the modules that a file names and that are not there."""
        package = _module_name(path).split(".")
        if not path.endswith("/__init__.py"):
            package = package[:-1]
        for node in ast.walk(tree):
            for name in self._find_missing(node, package):
                yield name, getattr(node, "lineno", 0)

    def _find_missing(self, node: ast.AST, package: list[str]) -> list[str]:
        if isinstance(node, ast.Import):
            return [a.name for a in node.names if self._is_ours(a.name) and not self._has(a.name)]
        if isinstance(node, ast.ImportFrom):
            kept = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*kept, *([node.module] if node.module else [])])
            return self._find_missing_from(base, [alias.name for alias in node.names])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.split(".")
            is_dotted = len(parts) >= MIN_DOTTED and all(map(_is_module_word, parts))
            if is_dotted and self._is_package(".".join(parts[:-1])):
                return self._find_missing_from(".".join(parts[:-1]), parts[-1:])
        return []

    def _find_missing_from(self, base: str, names: list[str]) -> list[str]:
        """A name of `from package import name` is a module unless the package itself binds it."""
        if not self._is_ours(base):
            return []
        if not self._has(base):
            return [base]
        if not self._is_package(base):
            return []
        bound = self._names_of(base)
        asked = [name for name in names if name != "*" and name not in bound]
        return [f"{base}.{name}" for name in asked if not self._has(f"{base}.{name}")]

    def _is_ours(self, name: str) -> bool:
        return name.partition(".")[0] in self._roots

    def _has(self, name: str) -> bool:
        return name in self._modules

    def _is_package(self, name: str) -> bool:
        return f"{name.replace('.', '/')}/__init__.py" in self._sources

    def _names_of(self, package: str) -> set[str]:
        """What a package's `__init__.py` binds; with `__getattr__` also the texts in it."""
        if package not in self._defined:
            try:
                tree = ast.parse(self._sources[f"{package.replace('.', '/')}/__init__.py"])
            except SyntaxError:
                tree = ast.Module([], [])
            self._defined[package] = set(_find_bound_names(tree))
        return self._defined[package]


def _is_module_word(word: str) -> bool:
    return word.isidentifier() and word.islower()


def _find_bound_names(tree: ast.AST) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    is_lazy = any(isinstance(n, ast.FunctionDef) and n.name == "__getattr__" for n in nodes)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif is_lazy and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
