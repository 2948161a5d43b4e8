"""The doc line under each field of the schema, read from its source."""

import ast
from functools import cache
from pathlib import Path

from . import schema


@cache
def knob_docs() -> dict[str, str]:
    """Dotted knob name -> its doc line, in the schema's order."""
    tree = ast.parse(Path(schema.__file__).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def walk(name: str, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        body = classes[name].body
        for node, following in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            key = prefix + node.target.id
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
            found[key] = text
            kind = node.annotation.id if isinstance(node.annotation, ast.Name) else ""
            if kind in classes and kind.endswith("Config"):
                found |= walk(kind, key + ".")
        return found

    return walk("RunConfig", "")
