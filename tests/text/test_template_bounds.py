"""A model's template is foreign code: it gets out of no sandbox, and takes little time and memory.

Each of these would take minutes, gigabytes, or reach Python's internals in a plain environment.
"""

import time
import tracemalloc
from datetime import datetime

import pytest

from engine.errors import TemplateError
from engine.text.chat_template import load_chat_format
from engine.text.jinja_template import JinjaTemplate
from engine.text.template_bounds import MAX_SOURCE_CHARS
from engine.text.tokenizer import load_tokenizer
from tests.text import templates
from tests.text.toy import write_gguf

NOW = datetime(2026, 11, 30, 12)  # noqa: DTZ001 -- templates show local time
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
MOST_BYTES = 64 * 2**20
MOST_SECONDS = 30.0  # of a busy machine; most take hundredths

DOUBLING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"

BOMBS = {
    "a product": "{{ 'a' * 10000000000 }}",
    "a product from the left": "{{ 10000000000 * 'a' }}",
    "a product of lists": "{{ [1] * 10000000000 }}",
    "a power": "{{ 10 ** 100000000 }}",
    "a tower of powers": "{{ 9 ** 9 ** 9 ** 9 }}",
    "squares": "{% set ns = namespace(x=9) %}"
    "{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a long range": "{% for i in range(1000000000) %}x{% endfor %}",
    "loops in loops": "{% for a in range(4000) %}{% for b in range(4000) %}"
    "{% for c in range(4000) %}{% endfor %}{% endfor %}{% endfor %}",
    "loops over messages": "{% for a in messages * 4 %}" * 8 + "{% endfor %}" * 8,
    "loops that leave all out": "{% for a in range(4000) %}{% for b in range(4000) if false %}"
    "{% endfor %}{% endfor %}",
    "text that is written in loops": "{% for a in range(4000) %}{% for b in range(4000) %}"
    + "x" * 10_000
    + "{% endfor %}{% endfor %}",
    "text that doubles": DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "text that doubles by ~": DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "text that doubles in a block": "{% set x %}ab{% endset %}"
    + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "lists that double": DOUBLING + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "tuples that double": DOUBLING + "{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ ns.x }}",
    "objects that double": DOUBLING + "{% set ns.x = {1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x }}",
    "dicts that double": DOUBLING + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "lists that are compared": DOUBLING
    + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x[0] }}",
    "namespaces that double": "{% set ns = namespace(x=1) %}{% for i in range(60) %}"
    "{% set n = namespace(a=ns.x, b=ns.x) %}{% set ns.x = n %}{% endfor %}{{ ns.x }}",
    "a macro that doubles": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a block without end": "{% block b %}{{ self.b() }}{% endblock %}",
    "a loop that recurses": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "replacing": "{{ ('a' * 50000)|replace('a', 'b' * 50000) }}",
    "replacing by a method": "{{ ('a' * 50000).replace('', 'b' * 50000) }}",
    "joining": "{{ range(4000)|join('a' * 60000) }}",
    "joining by a method": "{{ ('a' * 60000).join(range(4000)|map('string')|list) }}",
    "centring": "{{ 'a'|center(10000000000) }}",
    "centring by a method": "{{ 'a'.center(10000000000) }}",
    "filling": "{{ 'a'.ljust(10000000000) }}{{ 'a'.rjust(10000000000) }}",
    "zeros": "{{ '1'.zfill(10000000000) }}",
    "tabs": "{{ '\t'.expandtabs(10000000000) }}",
    "an indent": "{{ 'a\nb'|indent(10000000000) }}",
    "an indent of JSON": "{{ {'a': [1, 2]}|tojson(indent=10000000000) }}",
    "a form": "{{ '%10000000000d' % 1 }}",
    "a form by a filter": "{{ '%10000000000d'|format(1) }}",
    "a form by a method": "{{ '{:10000000000}'.format(1) }}",
    "a form by a map": "{{ '{a:10000000000}'.format_map({'a': 1}) }}",
    "a time format": "{{ strftime_now('%10000000000d' * 100) }}",
    "bytes of a number": "{{ (5).to_bytes(10000000000, 'big') }}",
    "rounding": "{{ 1.5|round(100000000, 'ceil') }}",
    "batches": "{{ [1]|batch(10000000000, 'x')|list }}",
    "slices": "{{ [1]|slice(10000000000)|list }}",
    "filler text": "{{ lipsum(n=100000000) }}",
    "words": "{{ 'a b'|wordwrap(1, wrapstring='x' * 60000) }}",
    "the largest of many, often": "{% for a in range(4000) %}{% for b in range(4000) %}"
    "{{ range(4000)|max }}{% endfor %}{% endfor %}",
    "a number too long to read": "{{ " + "9" * 100_000 + " }}",
    "brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "conditions in conditions": "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
    "loops as deep as Python takes no more": "{% for a in [1] %}" * 200 + "{% endfor %}" * 200,
    "a source without end": "{{ 1 }}" * (MAX_SOURCE_CHARS // 7 + 1),
}
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ messages|map(attribute='__class__')|first }}{{ messages[0].__class__.__base__ }}",
    "{{ raise_exception.__globals__['jinja2'] }}",
    "{{ strftime_now.__func__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ range.__self__._spent }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ ('{0.__cla' ~ 'ss__}').format_map({'0': ''}) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ dict.fromkeys([1]) }}",
    "{{ (1).__add__(2) }}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f.__init__.__globals__ }}",
    "{{ environment.globals }}{{ environment.spend(-1000000000) }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends '/etc/passwd' %}",
    "{% do messages.clear() %}",
    "{% debug %}",
]


def rendered(source):
    template = JinjaTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.at(NOW)(MESSAGES, generate=True)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_bounded_time_and_memory(name):
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(TemplateError) as refused:
            rendered(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < MOST_SECONDS
    assert "chat template" in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_of_pythons_is_reached(source):
    try:
        text = rendered(source)
    except TemplateError:
        return
    # what is not defined is written as nothing
    assert text.strip() in {"", "[]"}, text


@pytest.mark.parametrize("name", ["a product", "loops in loops", "a macro that doubles"])
def test_a_model_whose_template_is_a_bomb_is_refused_at_load(name, tmp_path):
    source = templates.NO_SYSTEM + BOMBS[name]
    added = {"<|im_start|>": 3, "<|im_end|>": 3}
    path = write_gguf(tmp_path / "m.gguf", added=added, template=source, eos="<|im_end|>")
    with pytest.raises(TemplateError, match=r"limit|steps"):
        load_chat_format(path, load_tokenizer(path))


def test_a_template_that_waits_for_a_date_is_bounded_whenever_it_is_rendered():
    source = "{% if strftime_now('%Y') > '2026' %}{{ 'a' * 10000000000 }}{% endif %}calm"
    template = JinjaTemplate(source, bos_token="", eos_token="")
    assert template.at(NOW)(MESSAGES) == "calm"
    with pytest.raises(TemplateError, match="limit"):
        template.at(NOW.replace(year=2027))(MESSAGES)
    assert template.at(NOW)(MESSAGES) == "calm"  # each rendering has a budget of its own


def test_what_real_templates_use_is_there():
    source = """\
{%- macro shown(m) %}{{ m.content | trim }}{% endmacro %}
{%- set ns = namespace(last=0, names=[]) %}
{%- for m in messages[::-1] %}{% set ns.last = loop.length - loop.index %}{% endfor %}
{%- for m in messages if m['role'] in ['user', 'assistant'] %}
{{- loop.index0 ~ m.role.upper() + shown(m) }}
{%- if loop.last %}{{ '!' }}{% break %}{% endif %}
{%- endfor %}
{{- messages[0] | tojson(indent=4) }}
{{- messages | map(attribute='role') | join(', ') }}
{{- (messages | selectattr('role', 'equalto', 'user') | list | length) * 2 + 1 }}
{%- for key, value in messages[0].items() %}{{ key }}={{ value|upper }};{% endfor %}
{{- 'a</think>b'.split('</think>')[-1].lstrip('\\n') | replace('b', 'c') | indent(2, first=true) }}
{{- '%' if nothing is not defined else none }}
{{- '{}'|string is string and not messages is mapping }}
{{- strftime_now('%d %b %Y') }}{{ (7 / 2) | int }}{{ 7 % 4 }}{{ messages|length // 2 }}
{%- set a, b = (1, 2) %}{{ a + b - 1 }}
{%- set text %}{{ bos_token }}x{% endset %}{{ text | length }}
"""
    assert rendered(source) == (
        '0USERhello1ASSISTANTyes!{\n    "role": "user",\n    "content": "hello"\n}'
        "user, assistant3role=USER;content=HELLO;  c%True30 Nov 202633124"
    )
