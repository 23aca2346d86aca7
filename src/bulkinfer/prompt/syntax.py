"""A template's tree, before it is compiled: only allowed parts, and the price put in.

What prints, joins, compares or loops is led through a function of `values`, which pays for it.
"""

from collections.abc import Iterable, Set

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

from bulkinfer.job import find_nearest
from bulkinfer.prompt.budget import UNITS_PER_OBJECT
from bulkinfer.prompt.filters import FILTERS
from bulkinfer.prompt.sandbox import TESTS

MAX_DEPTH = 60
MAX_LOOP_DEPTH = 8
_BINARY = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod)
_STATEMENTS = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.For,
    nodes.If,
    nodes.Assign,
    nodes.AssignBlock,
    nodes.With,
)
_VALUES = (
    nodes.Name,
    nodes.Const,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
)
_LOGIC = (
    nodes.CondExpr,
    nodes.Test,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Neg,
    nodes.Pos,
)
_CALLS = (nodes.Filter, nodes.Call, nodes.Keyword, nodes.Concat)
_NEVER_MAPPINGS = (*_BINARY, nodes.Const, nodes.List, nodes.Tuple, nodes.Concat, nodes.Neg, nodes.Pos)
"""A field, and what filters make of one, may have any key, such as `__v`; these have none."""
_ALLOWED = frozenset((*_STATEMENTS, *_VALUES, *_LOGIC, *_CALLS, *_BINARY))


def check_tree(tree: nodes.Template) -> None:
    """Raises TemplateSyntaxError for a part that prompts cannot have, and for a tree too deep to compile."""
    stack: list[tuple[nodes.Node, int, int, int]] = [(tree, 0, 0, 1)]
    while stack:
        node, depth, loops, line = stack.pop()
        line = node.lineno or line  # Jinja forgets it where it puts a node in
        loops += isinstance(node, nodes.For)
        if depth > MAX_DEPTH or loops > MAX_LOOP_DEPTH:
            raise TemplateSyntaxError("nested too deeply", line)
        if fault := _fault_of(node):
            raise TemplateSyntaxError(fault, line)
        stack += [(child, depth + 1, loops, line) for child in node.iter_child_nodes()]


def price_tree(tree: nodes.Template) -> nodes.Template:
    """The tree with the functions that pay put in. Changes the tree itself."""
    priced: nodes.Template = _Pricing(find_own_names(tree)).visit(tree)
    priced.set_environment(tree.environment)  # type: ignore[arg-type]  # a parsed tree has one
    return priced


def find_own_names(tree: nodes.Template) -> frozenset[str]:
    """Variables that hold the template's own text wherever they are set: no field goes into them."""
    sources: list[tuple[nodes.Node, list[nodes.Node]]] = [
        *((assigned.target, [assigned.node]) for assigned in tree.find_all(nodes.Assign)),
        *((block.target, block.body) for block in tree.find_all(nodes.AssignBlock)),
    ]
    own = {target.name for target, _ in sources if isinstance(target, nodes.Name)}
    has_changed = True
    while has_changed:
        foreign = {
            target.name
            for target, values in sources
            if isinstance(target, nodes.Name) and not all(_is_own(value, own) for value in values)
        }
        has_changed = bool(own & foreign)
        own -= foreign
    return frozenset(own)


def _is_own(node: nodes.Node, own_names: Set[str]) -> bool:
    """Whether the text of it is the template's, whatever the document: fields may decide which, in a condition."""
    match node:
        case nodes.Name():
            return node.name in own_names
        case nodes.CondExpr():
            return all(_is_own(one, own_names) for one in (node.expr1, node.expr2) if one is not None)
        case nodes.If():
            bodies = (*node.body, *node.elif_, *node.else_)
            return all(_is_own(one, own_names) for one in bodies)
    return all(_is_own(child, own_names) for child in node.iter_child_nodes())


def _fault_of(node: nodes.Node) -> str | None:
    fault = None
    match node:
        case nodes.For() if node.recursive:
            fault = "recursive loops are not available in prompts"
        case nodes.Filter() if node.name not in FILTERS:
            fault = f"unknown filter {node.name!r}{_suggest(node.name, FILTERS)}"
        case nodes.Test() if node.name not in TESTS:
            fault = f"unknown test {node.name!r}{_suggest(node.name, TESTS)}"
        case nodes.Call() if not isinstance(node.node, nodes.Getattr):
            fault = "functions are not available in prompts; filters and methods are"
        case nodes.Call(node=nodes.Getattr(attr=str(name))) if name.startswith("_"):
            fault = f"no value has a method {name}"
        case nodes.Getattr(attr=str(name)) if name.startswith("_") and isinstance(node.node, _NEVER_MAPPINGS):
            fault = f"no value but a mapping has anything named {name}"
        case nodes.Name(name="self"):
            fault = "the name 'self' is Jinja's own; rename the field"
        case _ if type(node) not in _ALLOWED:
            fault = f"{type(node).__name__.lower()} is not available in prompts"
    return fault


def _suggest(name: str, known: Iterable[str]) -> str:
    nearest = find_nearest(name, known)
    return f"; did you mean {nearest}?" if nearest else f"; known are {', '.join(sorted(known))}"


class _Pricing(NodeTransformer):
    """Children first, so that what is put in is not visited again."""

    def __init__(self, own_names: frozenset[str]) -> None:
        self._own_names = own_names

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802 - the visitor finds it by the node's name
        told = [(nodes.Const(_field_of(child)), nodes.Const(_is_own(child, self._own_names))) for child in node.nodes]
        self.generic_visit(node)
        node.nodes = [
            child if isinstance(child, nodes.TemplateData) else _priced(child, "$print", *about)
            for child, about in zip(node.nodes, told, strict=True)
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        fields = nodes.List([nodes.Const(_field_of(child)) for child in node.nodes])
        self.generic_visit(node)
        return _priced(nodes.List(node.nodes, lineno=node.lineno), "$concat", fields)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _priced(node.expr, "$pay")
        for operand in node.ops:
            operand.expr = _priced(operand.expr, "$pay")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _priced(node, "$pay")
        node.arg = _priced(node.arg, "$pay")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        # To find the hash of a key is to look at all of it.
        self.generic_visit(node)
        node.key = _priced(node.key, "$pay")
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        field, units = _field_of(node.iter), _units_of_step(node)
        self.generic_visit(node)
        node.iter = _priced(node.iter, "$loop", nodes.Const(units), nodes.Const(field))
        return node


def _priced(node: nodes.Node, function: str, *args: nodes.Expr) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, function, list(args), [], None, None, lineno=node.lineno)


def _units_of_step(loop: nodes.For) -> int:
    """What one step costs at least: its static text, and the parts of the template that it runs."""
    texts = sum(len(text.data) for text in loop.find_all(nodes.TemplateData))
    return UNITS_PER_OBJECT + texts + 16 * sum(1 for _ in loop.find_all(nodes.Node))


def _field_of(node: nodes.Node) -> str | None:
    """How the template names a value: `subject`, `customer.name`; None for anything longer."""
    match node:
        case nodes.Name():
            return node.name
        case nodes.Getattr():
            return None if (above := _field_of(node.node)) is None else f"{above}.{node.attr}"
        case nodes.Getitem(arg=nodes.Const() as key):
            return None if (above := _field_of(node.node)) is None else f"{above}.{key.value}"
        case nodes.Filter():
            return _field_of(node.node) if node.node else None
    return None
