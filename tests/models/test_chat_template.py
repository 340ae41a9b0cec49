"""Chat templates: what `transformers` makes of them, in bounded time and memory."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from quasar_lab.models import chat_template
from quasar_lab.models.chat_template import render
from quasar_lab.support.errors import InputError

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "What is “é” in {{ json }}?"},
    {"role": "assistant", "content": "<think>\\nhm\\n</think>\\n\\nA letter."},
    {"role": "user", "content": "Thanks.  "},
]
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trimmed blocks": """{%- set ns = namespace(last=0) -%}
        {%- for m in messages %}
            {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
        {%- endfor %}
        {{ bos_token }}{{ ns.last }}
        {% for m in messages[::-1] %}
    [{{ loop.index }}/{{ loop.length }}] {{ m.content | trim }}
        {% endfor %}""",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ messages[1].content | tojson }}",
    "break and generation": "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}"
    "{% generation %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endgeneration %}{% endfor %}",
    "macro": "{% macro show(m) %}{{ m.role | upper }}:{{ m.content | replace('<', '(') }}{% endmacro %}"
    "{% for m in messages if m.role != 'system' %}{{ show(m) }}{% endfor %}",
    "an argument": "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}",
    "time": "{{ strftime_now('%Y') | length }}{{ tools }}{{ eos_token }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("more", [{}, {"enable_thinking": False}], ids=str)
def test_a_template_gives_what_transformers_gives(name, more):
    values = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None, **more}
    theirs = render_jinja_template([MESSAGES], chat_template=TEMPLATES[name], **values)[0][0]
    assert render(TEMPLATES[name], {"messages": MESSAGES, **values}) == theirs


LARGE = "range(99999)"
HOSTILE = {
    "nested loops": f"{{% for a in {LARGE} %}}{{% for b in {LARGE} %}}{{% endfor %}}{{% endfor %}}",
    "one huge text": "{{ 'a' * 10 ** 11 }}",
    "padding": "{{ 'a'.ljust(10 ** 11) }}",
    "a format": "{{ '%100000000000d' % 1 }}",
    "doubling": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "a long output": f"{{% for a in {LARGE} %}}{{{{ 'a' * 1000 }}}}{{% endfor %}}",
    "a huge number": "{{ 9 ** (9 ** 9) }}",
    "a recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep brackets": "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
    "many": "{% for a in range(99999) %}{% set x = [0] * 1000000 %}{% for b in x %}{% endfor %}{% endfor %}",
    "Python's insides": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a file": "{% include '/etc/passwd' %}",
    "refuses": "{{ raise_exception('no system message') }}",
    "fails": "{{ 1 / 0 }}",
    "no template": "{% if %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_line_soon(name, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    with pytest.raises(InputError, match="the model's chat template refuses these messages: ") as caught:
        render(HOSTILE[name], {"messages": MESSAGES})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_template_that_never_computes_is_stopped_by_the_clock(monkeypatch):
    """A process that sleeps uses no computing time."""
    monkeypatch.setattr(chat_template.subprocess, "run", _too_late)
    with pytest.raises(InputError, match="it takes more than 30 seconds"):
        render("{{ 'sleeps' }}", {})


def _too_late(*arguments, timeout, **more):
    raise chat_template.subprocess.TimeoutExpired("", timeout)


def test_values_that_are_no_json():
    with pytest.raises(InputError, match="accepted: JSON values"):
        render("{{ x }}", {"x": object()})


def test_a_conversation_is_rendered_once(monkeypatch):
    first = render("{{ 'once' }}", {})
    monkeypatch.setattr(chat_template.subprocess, "run", None)
    assert render("{{ 'once' }}", {}) == first == "once"
