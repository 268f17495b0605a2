"""Which metrics and labels a PromQL expression names, without a Prometheus."""

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_WORDS = {"and", "or", "unless", "bool", "offset"}
OF_PROMETHEUS = {"up": {"job", "instance"}}
FOREIGN = {  # of dcgm-exporter's default counters
    name: {"gpu"} for name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL")
}


def without_strings(expression):
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)


def label_names(expression):
    text = without_strings(expression)
    named = {name.strip() for group in _GROUPING.findall(text) for name in group.split(",")}
    for matchers in _MATCHERS.findall(text):
        named |= set(re.findall(rf"({_NAME})\s*(?:=~|!~|!=|=)", matchers))
    return named - {""}


def metric_names(expression):
    text = without_strings(expression)
    for part in (_GROUPING, _MATCHERS, re.compile(r"\[[^\]]*\]")):
        text = part.sub(" ", text)
    found = re.findall(rf"(?<![\w.:])({_NAME})\b(?!\s*\()", text)
    functions = re.findall(rf"({_NAME})\s*(?=\()", text)
    return set(found) - set(functions) - _WORDS - {"sum", "histogram_quantile", "rate"}


def unknown_names(expression, live):
    """Names that are not there. `live`: of each series' name its labels."""
    there = {**live, **OF_PROMETHEUS, **FOREIGN}
    names = metric_names(expression)
    known = set().union(*(there.get(name, set()) for name in names), {"job", "instance"})
    return sorted((names - there.keys()) | (label_names(expression) - known))
