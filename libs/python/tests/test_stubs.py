"""The stubs describe the package."""

import ast
import subprocess
import sys

from places import ROOT

import roce
from roce import _roce

FOLDER = ROOT / "libs" / "python"


def test_the_stub_of_the_layers_is_that_of_the_tables():
    printed = subprocess.run([sys.executable, FOLDER / "stubs", "--print"], stdout=subprocess.PIPE, check=True)
    stub = FOLDER / "python" / "roce" / "layers.pyi"
    assert printed.stdout.decode() == stub.read_text(), "run libs/python/stubs"


def test_the_stub_of_the_rust_part_names_what_it_has():
    tree = ast.parse((FOLDER / "python" / "roce" / "_roce.pyi").read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = set()
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            bases = {base.id for base in node.bases}
            found[node.name] = members | ({"close", "__enter__", "__exit__"} if "_Closes" in bases else set())
    public = {name for name in dir(_roce) if not name.startswith("_")}
    assert public == set(found)
    for name, members in found.items():
        for member in members:
            assert hasattr(getattr(_roce, name), member), f"{name}.{member}"
        kind = getattr(_roce, name)
        if isinstance(kind, type):
            assert {own for own in vars(kind) if not own.startswith("_")} <= members, name


def test_public_functions_have_documentation():
    for module in [roce, roce.layers, roce.capture, roce.sim]:
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                assert value.__doc__, f"{module.__name__}.{name}"
                for member, method in vars(value).items() if isinstance(value, type) else []:
                    if callable(method) and not member.startswith("_"):
                        assert method.__doc__, f"{name}.{member}"
