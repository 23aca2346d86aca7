"""How long a rendered prompt can become at most, told from the template alone. Renders nothing."""

from jinja2 import nodes

_PLAIN = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.If,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.CondExpr,
    nodes.Test,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Concat,
)
_NEVER_LONGER = frozenset({"trim", "default", "d"})
"""Filters whose value is no longer than what goes into them."""


def count_prints(tree: nodes.Template) -> int | None:
    """How often fields can be printed at most; None where a loop, a sum or a filter may lengthen what is printed.

    Counts every use of a field, in conditions too: a bound, not a number.
    """
    if all(map(_is_plain, tree.find_all(nodes.Node))):
        return sum(1 for _ in tree.find_all(nodes.Name))
    return None


def _is_plain(node: nodes.Node) -> bool:
    match node:
        case nodes.Filter():
            return node.name in _NEVER_LONGER
        case nodes.Const():
            return not isinstance(node.value, float)  # 1e15 is printed with all its zeros
    return isinstance(node, _PLAIN)
